// Tells of containers' logs that cannot be written: a line in the daemon's log when a file system begins to fail and one
// when it has recovered, and entries in the timelines of its pods (isulad-ts why).
import { dirname } from "node:path";
import type { Log } from "../base/log.ts";
import type { LogState, LogTrouble } from "../monitor/protocol.ts";
import type { LogEnd } from "../history/pod_history.ts";

type Options = {
  log: Log;
  /** Adds an entry to the timeline of the container's pod. */
  onChange: (containerId: string, change: { errno: string; path: string; end?: LogEnd }) => void;
};

/** What failed on one file system since it began to. */
type Failing = { errno: string; beganMs: number; folder: string; containers: Set<string> };

export class LogTroubles {
  readonly #options: Options;
  readonly #devices = new Map<string, Failing>();
  /** By the container's id: its last trouble while it failed. */
  readonly #containers = new Map<string, LogTrouble>();

  constructor(options: Options) {
    this.#options = options;
  }

  /** Compares the monitor's state with the one before. Containers that have ended are in it no longer. */
  update({ troubles }: LogState, nowMs: number): void {
    const failing = troubles.filter(({ errno }) => errno !== undefined);
    for (const trouble of failing) this.#begin(trouble, nowMs);
    const ids = new Set(failing.map(({ id }) => id));
    for (const [id, before] of this.#containers) {
      if (ids.has(id)) continue;
      this.#containers.delete(id);
      const after = troubles.find((one) => one.id === id) ?? before;
      const end = { droppedBytes: after.droppedBytes, tookMs: nowMs - before.sinceMs };
      this.#options.onChange(id, { errno: before.errno ?? "", path: before.path, end });
    }
    const devices = new Set(failing.map(({ device }) => device));
    for (const [device, one] of this.#devices)
      if (!devices.has(device)) this.#end(device, one, nowMs, troubles);
  }

  #begin(trouble: LogTrouble, nowMs: number): void {
    const { id, device, errno = "", path, sinceMs } = trouble;
    if (!this.#containers.has(id)) this.#options.onChange(id, { errno, path });
    this.#containers.set(id, trouble);
    const known = this.#devices.get(device);
    if (known !== undefined) {
      known.containers.add(id);
      return;
    }
    const folder = dirname(path);
    const containers = new Set([id]);
    this.#devices.set(device, { errno, beganMs: Math.min(sinceMs, nowMs), folder, containers });
    const fields = { error: errno, path, device, container: id };
    this.#options.log.warn(
      "logs of containers cannot be written: the containers go on, and what they write is dropped unless log-on-error is block",
      fields,
    );
  }

  #end(device: string, failing: Failing, nowMs: number, troubles: readonly LogTrouble[]): void {
    this.#devices.delete(device);
    const { errno: error, beganMs, folder, containers } = failing;
    const dropped = troubles.filter(({ id }) => containers.has(id));
    const droppedBytes = dropped.reduce((sum, one) => sum + one.droppedBytes, 0);
    const seconds = Math.round((nowMs - beganMs) / 1_000);
    const fields = { error, folder, device, seconds, containers: containers.size, droppedBytes };
    this.#options.log.info("logs of containers can be written again", fields);
  }
}
