// Coalesces calls: however many come during a run of the work, one further run serves them all.
import { Semaphore } from "./semaphore.ts";

/**
 * Returns a function that runs `work`, once at a time. Its callers get the result of a run that began after their
 * call; those who call during a run share the next one. what: what they wait for, for the dump.
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
