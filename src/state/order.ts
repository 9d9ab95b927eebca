// The order of records: newest first, by creation times that never go back within a pod.
import { nowNs } from "../base/int64.ts";

type Created = { id: string; createdAtNs: string };

/** For toSorted(): the newest first; of two that were created at once, the one with the smaller id. */
export function newestFirst(a: Created, b: Created): number {
  const [timeA, timeB] = [BigInt(a.createdAtNs), BigInt(b.createdAtNs)];
  if (timeA !== timeB) return timeA > timeB ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

/**
 * The creation time of what follows `earlier`, in nanoseconds since the epoch: now, or just after the
 * newest of them where the wall clock was set back. Clients take the latest attempt for the current one.
 */
export function createdAfter(earlier: readonly { createdAtNs: string }[]): string {
  let time = nowNs();
  for (const { createdAtNs } of earlier) {
    if (BigInt(createdAtNs) >= time) time = BigInt(createdAtNs) + 1n;
  }
  return String(time);
}
