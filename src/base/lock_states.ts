// Lists the locks in use, with who holds each and who waits for it, for the dump.
import { currentActivity, type Activity } from "./activity.ts";

/** A holder of a lock, or one who waits for it. by: undefined for work outside of any activity. */
export type Turn = { by: Activity | undefined; sinceMs: number };

export type LockInUse = {
  readonly what: string;
  readonly holders: ReadonlySet<Turn>;
  readonly waiting: ReadonlySet<Turn>;
};

/** Holds a lock only while the lock is held: locks are made and dropped all the time. */
const inUse = new Set<LockInUse>();

export function locksInUse(): readonly LockInUse[] {
  return [...inUse];
}

/** The caller's turn, from now on. */
export function newTurn(): Turn {
  return { by: currentActivity(), sinceMs: performance.now() };
}

/** Call this after each change of the lock's holders. */
export function lockChanged(lock: LockInUse): void {
  if (lock.holders.size > 0) inUse.add(lock);
  else inUse.delete(lock);
}
