// Asks CNI plugins for their STATUS (CNI 1.1): would the network take a pod now?
import { setTimeout as sleep } from "node:timers/promises";
import { CriError, messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { SingleFlight } from "../base/single_flight.ts";
import { pluginInput } from "./cni_args.ts";
import { isSince11, type ConfList } from "./cni_conf.ts";
import { execPlugin, type CniErrorCause } from "./cni_exec.ts";

/** An answer is as good as new for so long: clients ask every few seconds. */
const freshMs = 1_000;
/** A Status call waits so long for a new answer, and takes the last one then. */
const patienceMs = 500;
/** For all plugins of a list together. */
const statusMs = 5_000;
const answersMax = 32;
const never = new AbortController().signal;

type Answer = { problem: string | undefined; atMs: number };

/** Asks a list's plugins for their STATUS; one question at a time, however many ask. */
export class StatusProbe {
  readonly #binDirs: string[];
  readonly #answers = new Map<string, Answer>();
  readonly #asking = new SingleFlight<Answer>();

  constructor(binDirs: string[]) {
    this.#binDirs = binDirs;
  }

  /** Why the network takes no pods; undefined: it does, or its plugins cannot tell. */
  async problemOf(list: ConfList): Promise<string | undefined> {
    if (!isSince11(list)) return undefined;
    const key = jsonText(list);
    const last = this.#answers.get(key);
    if (last !== undefined && performance.now() - last.atMs < freshMs) return last.problem;
    const asking = this.#asking.join(key, never, () => this.#ask(key, list));
    if (last === undefined) return (await asking).problem;
    const waited = sleep(patienceMs, last, { ref: false });
    return (await Promise.race([asking, waited])).problem;
  }

  async #ask(key: string, list: ConfList): Promise<Answer> {
    const problem = await this.#problem(list);
    const answer = { problem, atMs: performance.now() };
    if (this.#answers.size >= answersMax) this.#answers.clear(); // of lists that were
    this.#answers.set(key, answer);
    return answer;
  }

  async #problem(list: ConfList): Promise<string | undefined> {
    const signal = AbortSignal.timeout(statusMs);
    for (const plugin of list.plugins) {
      try {
        const input = pluginInput(list, plugin, { capabilityArgs: {} });
        const call = { plugin: plugin.type, binDirs: this.#binDirs, input };
        await execPlugin({ command: "STATUS", ...call }, signal);
      } catch (error) {
        if (!knowsNoSuchCommand(error)) return messageOf(error);
      }
    }
    return undefined;
  }
}

/** What plugins say that were built on a library older than CNI 1.1, whatever versions they claim. */
export function knowsNoSuchCommand(error: unknown): boolean {
  const unknownCommand = 4; // "Invalid necessary environment variables, like CNI_COMMAND"
  const cause = error instanceof CriError ? (error.cause as Partial<CniErrorCause>) : undefined;
  return cause?.cniCode === unknownCommand;
}
