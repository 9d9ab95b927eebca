// Stats of a daemon's containers, for the tests of several files.
import { setTimeout as sleep } from "node:timers/promises";
import type { runtime } from "../src/proto/messages.js";
import type { Daemon } from "./harness.ts";

/** Figures are read at most once a second, writable layers every ten: this is far more than both. */
const waitMs = 60_000;

/** Asks until it is so. @throws with the last answer when it never is. */
export async function until<T>(ask: () => Promise<T>, isSo: (value: T) => boolean): Promise<T> {
  for (const end = Date.now() + waitMs; ;) {
    const value = await ask();
    if (isSo(value)) return value;
    if (Date.now() > end) throw new Error(`It stays ${JSON.stringify(value, null, 1)}`);
    await sleep(300);
  }
}

/** A container's stats, its writable layer counted: in an emulated guest that takes a while. */
export function countedStats(daemon: Daemon, id: string): Promise<runtime.v1.ContainerStats> {
  const ask = async () => {
    const { stats } = await daemon.client.ContainerStats({ container_id: id });
    return stats as runtime.v1.ContainerStats;
  };
  return until(ask, ({ writable_layer: layer }) => Boolean(layer));
}
