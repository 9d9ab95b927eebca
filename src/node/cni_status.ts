// Runs CNI 1.1's STATUS, which tells whether a network can take a pod now, and caches the result.
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { SingleFlight } from "../base/single_flight.ts";
import { pluginInput } from "./cni_args.ts";
import { isSince11, type ConfList } from "./cni_conf.ts";
import { execPlugin, isUnknownCommand } from "./cni_exec.ts";

/** A result is reused for this long: clients call Status every few seconds. */
const freshMs = 1_000;
/** A Status call waits this long for a new result before it uses the previous one. */
const waitMs = 500;
/** Limit for all plugins of a list together. */
const statusMs = 5_000;
const resultsMax = 32;
const never = new AbortController().signal;

type Result = { problem: string | undefined; atMs: number };

/** Runs STATUS of a list's plugins, single-flight. */
export class StatusProbe {
  readonly #options: { readonly binDirs: string[] };
  readonly #results = new Map<string, Result>();
  readonly #running = new SingleFlight<Result>();

  constructor(options: { readonly binDirs: string[] }) {
    this.#options = options;
  }

  /** Returns why the network cannot take pods; undefined: it can, or its plugins do not support STATUS. */
  async problemOf(list: ConfList): Promise<string | undefined> {
    if (!isSince11(list)) return undefined;
    const key = jsonText(list);
    const last = this.#results.get(key);
    if (last !== undefined && performance.now() - last.atMs < freshMs) return last.problem;
    const running = this.#running.join(key, never, () => this.#probe(key, list));
    if (last === undefined) return (await running).problem;
    const waited = sleep(waitMs, last, { ref: false });
    return (await Promise.race([running, waited])).problem;
  }

  async #probe(key: string, list: ConfList): Promise<Result> {
    const result = { problem: await this.#run(list), atMs: performance.now() };
    if (this.#results.size >= resultsMax) this.#results.clear(); // edited lists leave stale keys behind
    this.#results.set(key, result);
    return result;
  }

  async #run(list: ConfList): Promise<string | undefined> {
    const signal = AbortSignal.timeout(statusMs);
    for (const plugin of list.plugins) {
      try {
        const input = pluginInput(list, plugin, { capabilityArgs: {} });
        const call = { plugin: plugin.type, binDirs: this.#options.binDirs, input };
        await execPlugin({ command: "STATUS", ...call }, signal);
      } catch (error) {
        if (!isUnknownCommand(error)) return messageOf(error);
      }
    }
    return undefined;
  }
}
