// Orders records newest first, by creation times that never go back within a pod.
import { nowNs } from "../base/clock.ts";

type Created = { id: string; createdAtNs: string };

/** Compares for toSorted(): the newest first; equal times are ordered by id. */
export function newestFirst(a: Created, b: Created): number {
  const [timeA, timeB] = [BigInt(a.createdAtNs), BigInt(b.createdAtNs)];
  if (timeA !== timeB) return timeA > timeB ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

/**
 * Holds records by id and lists them newest first. A kubelet takes the first container of a name in a pod's
 * status for the newest one, and the order of a folder or of a Map would differ after a restart.
 */
export class Ordered<Record extends Created> {
  readonly #records = new Map<string, Record>();
  readonly #order: string[] = [];

  /** Adds a record, or replaces the one with its id: a record keeps its creation time. */
  set(record: Record): void {
    if (!this.#records.has(record.id)) {
      const at = this.#order.findIndex((id) => newestFirst(record, this.#records.get(id)!) < 0);
      this.#order.splice(at < 0 ? this.#order.length : at, 0, record.id);
    }
    this.#records.set(record.id, record);
  }

  get(id: string): Record | undefined {
    return this.#records.get(id);
  }

  has(id: string): boolean {
    return this.#records.has(id);
  }

  delete(id: string): void {
    if (this.#records.delete(id)) this.#order.splice(this.#order.indexOf(id), 1);
  }

  ids(): readonly string[] {
    return this.#order;
  }

  list(): Record[] {
    return this.#order.map((id) => this.#records.get(id)!);
  }
}

/**
 * Returns a creation time after all of `earlier`, in nanoseconds since the epoch: now, or just after the
 * newest of them if the wall clock was set back. Clients take the latest attempt for the current one.
 */
export function createdAfter(earlier: readonly { createdAtNs: string }[]): string {
  let time = nowNs();
  for (const { createdAtNs } of earlier) {
    if (BigInt(createdAtNs) >= time) time = BigInt(createdAtNs) + 1n;
  }
  return String(time);
}
