// Reads the stats of a daemon's containers for tests.
import { setTimeout as sleep } from "node:timers/promises";
import type { runtime } from "../src/proto/messages.js";
import type { Daemon } from "./harness.ts";

/** Stats are cached for 1 s, writable layers for 10 s: this is far longer. */
const waitMs = 60_000;

/** Polls until a condition holds. @throws Error with the last value. */
export async function until<T>(ask: () => Promise<T>, isSo: (value: T) => boolean): Promise<T> {
  for (const end = Date.now() + waitMs; ;) {
    const value = await ask();
    if (isSo(value)) return value;
    if (Date.now() > end) throw new Error(`the value stays ${JSON.stringify(value, null, 1)}`);
    await sleep(300);
  }
}

/** Returns a container's stats once its writable layer is measured, which takes a while in a guest. */
export function countedStats(daemon: Daemon, id: string): Promise<runtime.v1.ContainerStats> {
  const ask = async () => {
    const { stats } = await daemon.client.ContainerStats({ container_id: id });
    return stats as runtime.v1.ContainerStats;
  };
  return until(ask, ({ writable_layer: layer }) => Boolean(layer));
}
