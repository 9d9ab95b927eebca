// Coalesces calls: however many come during a run of the work, one further run serves them all.
import { Semaphore } from "./semaphore.ts";

/**
 * Returns a function that runs `work`, one run at a time. Each caller gets the result of a run that began after the
 * call; all who call during a run share the next one. what: what the callers wait for, for the dump.
 */
export function coalesced<T>(what: string, work: () => Promise<T>): () => Promise<T> {
  const turns = new Semaphore(1, what);
  let next: Promise<T> | undefined;
  return () =>
    (next ??= turns.run(undefined, () => {
      next = undefined;
      return work();
    }));
}
