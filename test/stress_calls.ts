// Makes calls to a stressed daemon as a kubelet does: a call interrupted by a planned restart is examined and
// repeated, any other failure is a fault. Also runs containers and compares their exit codes and logs with
// the expected ones.
import { readFileSync, rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { inTime, type Droppable } from "../src/base/abort.ts";
import { codeOf, messageOf } from "../src/base/errors.ts";
import { type Client, connect } from "../src/cli/client.ts";
import { runtime } from "../src/proto/messages.js";
import type { ContainerConfig } from "../src/proto/types.ts";
import type { Item } from "./event_check.ts";
import type { Daemon } from "./harness.ts";
import { addFault, compareEnd, compareLog, type Faults, type Streams } from "./stress_check.ts";
import { type Pod, programsOf, runtimeCallsOf, type StressNode } from "./stress_node.ts";

const { ContainerState } = runtime.v1;
const attemptsMax = 20;
/** Limit until an exited container is listed as exited. */
const endMsMax = 30_000;
/** Limit until a running container is listed RUNNING. */
const listedMs = 4_000;
/** A start without a runtime call or process for this long was rolled back. */
const undoneMs = 3_000;
const pollMs = 50;
/** Limit of one call with all its streams. */
const callMsMax = 90_000;

/** Counts of completed work; plain data, for the record of a run. */
export type Tally = {
  faults: Faults;
  execs: number;
  execBytes: number;
  logBytes: number;
  linesRepeated: number;
  exits: number;
  events: number;
  streamBytes: number;
  /** Calls repeated because a planned restart interrupted them. */
  interrupted: number;
  /** Containers recreated because their start was interrupted. */
  startsRepeated: number;
  disturbances: Record<string, number>;
  /** Other warnings and errors in the daemon's own logs, by shape. */
  warnings: Record<string, number>;
};

export function newTally(): Tally {
  const counts = { execs: 0, execBytes: 0, logBytes: 0, linesRepeated: 0, exits: 0, events: 0 };
  const more = { streamBytes: 0, interrupted: 0, startsRepeated: 0 };
  return { faults: {}, ...counts, ...more, disturbances: {}, warnings: {} };
}

/** A started container. kills: of the monitor before the start; bothKills: of monitor and daemon at once. */
export type Started = {
  id: string;
  key: string;
  kills: number;
  bothKills: number;
  logPath: string;
};
export type Wish = {
  key: string;
  pod: Pod;
  command: string;
  config?: ContainerConfig;
};

export class Calls {
  readonly node: StressNode;
  readonly daemon: Daemon;
  readonly tally: Tally;
  /** For the event checker: how containers were ended. */
  readonly expected: Item[] = [];
  #clients: Client[] = [];
  /** Changes when a disturbance begins and when it ends. */
  #epoch = 0;
  #disturbing = false;
  #held = Promise.resolve();
  monitorKills = 0;
  bothKills = 0;

  constructor(node: StressNode, tally: Tally) {
    this.node = node;
    this.daemon = node.daemon;
    this.tally = tally;
  }

  fault(kind: keyof Faults, words: string): void {
    addFault(this.tally.faults, kind, words);
  }

  /** One connection per slot, replaced after a restart of the daemon. */
  client(slot: number): Client {
    return (this.#clients[slot] ??= connect(`unix://${this.daemon.socket}`));
  }

  closeClients(): void {
    for (const client of this.#clients.splice(0)) client?.close();
  }

  /** Failing calls are repeated during a disturbance; with `hold`, no call starts before its end. */
  async disturbed(act: () => Promise<void>, { hold }: { hold: boolean }): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    if (hold) this.#held = promise;
    this.#epoch++;
    this.#disturbing = true;
    try {
      await act();
    } finally {
      if (hold) this.closeClients();
      this.#epoch++;
      this.#disturbing = false;
      resolve();
    }
  }

  /** Makes a call; repeats it after a planned restart. @throws any other failure. */
  async again<T extends Droppable>(act: () => Promise<T>): Promise<T> {
    for (;;) {
      const done = await this.once(act);
      if (done !== undefined) return done.result;
    }
  }

  /** undefined: a planned restart interrupted it. anyError: an interrupted stream fails in many ways. */
  async once<T extends Droppable>(
    act: () => Promise<T>,
    { anyError = false }: { anyError?: boolean } = {},
  ): Promise<{ result: T } | undefined> {
    await this.#held;
    const epoch = this.#epoch;
    try {
      return { result: await inTime(act(), "what was called", callMsMax) };
    } catch (error) {
      const wasCut = this.#disturbing || epoch !== this.#epoch;
      if (!wasCut || (!anyError && !["UNAVAILABLE", "CANCELLED"].includes(codeOf(error))))
        throw error;
      this.tally.interrupted++;
      await sleep(pollMs);
      return undefined;
    }
  }

  // -- containers -----------------------------------------------------------------------------------

  status(id: string): Promise<runtime.v1.ContainerStatus> {
    return this.again(() => this.daemon.status(id));
  }

  /** Creates and starts a container, with retries after restarts. */
  async start(wish: Wish): Promise<Started> {
    for (let attempt = 0; attempt < attemptsMax; attempt++) {
      const kills = this.monitorKills;
      const bothKills = this.bothKills;
      const made = await this.once(() => this.#create(wish, attempt));
      if (made === undefined) {
        await this.removeByKey(wish.key);
        continue;
      }
      const id = made.result;
      if (await this.#startOne(id, wish.key)) {
        return { id, key: wish.key, kills, bothKills, logPath: (await this.status(id)).log_path };
      }
      this.tally.startsRepeated++;
      await this.remove(id);
    }
    throw new Error(`${wish.key} was not started in ${attemptsMax} attempts`);
  }

  #create({ key, pod, command, config }: Wish, attempt: number): Promise<string> {
    return this.daemon.create(pod.id, pod.config, command, {
      ...config,
      metadata: { name: key, attempt },
      labels: { stress: key },
      log_path: `${key}-${attempt}.log`,
    });
  }

  async #startOne(id: string, key: string): Promise<boolean> {
    const request = { container_id: id };
    const started = await this.once(() => this.daemon.client.StartContainer(request));
    return started !== undefined || this.settled(id, key);
  }

  /** After an interrupted start: finds out with certainty whether the container was started. */
  async settled(id: string, key: string): Promise<boolean> {
    let runsSince: number | undefined;
    let idleSince: number | undefined;
    for (;;) {
      const { state, reason } = await this.status(id);
      if (state === ContainerState.CONTAINER_RUNNING) return true;
      if (state === ContainerState.CONTAINER_EXITED) return reason !== "StartError";
      const now = performance.now();
      const runs = programsOf(id).length > 0;
      const idle = !runs && runtimeCallsOf(id).length === 0;
      runsSince = runs ? (runsSince ?? now) : undefined;
      idleSince = idle ? (idleSince ?? now) : undefined;
      if (runsSince !== undefined && now - runsSince > listedMs) {
        this.fault("state", `${key} (${id.slice(0, 12)}) is listed CREATED while it runs`);
        return false;
      }
      if (idleSince !== undefined && now - idleSince > undoneMs) return false;
      await sleep(pollMs);
    }
  }

  /** Waits for the exit and compares its code; undefined: it is not listed as exited (a fault). */
  async ended(
    { id, key, kills }: Started,
    exitCode: number,
    { withinMs = endMsMax }: { withinMs?: number } = {},
  ): Promise<runtime.v1.ContainerStatus | undefined> {
    const end = performance.now() + withinMs;
    for (;;) {
      const status = await this.status(id);
      if (status.state === ContainerState.CONTAINER_EXITED) {
        const { exit_code, reason, message } = status;
        const got = { exitCode: exit_code, reason, message: message ?? "" };
        const unknown = kills !== this.monitorKills;
        compareEnd(got, exitCode, { who: key, faults: this.tally.faults, unknown });
        if (!unknown) this.expected.push({ kind: "expected", id, exitCode, reason });
        this.tally.exits++;
        return status;
      }
      if (performance.now() > end) {
        const alive = programsOf(id).length;
        const words = `listed ${ContainerState[status.state]} after ${withinMs / 1000} s with ${alive} processes`;
        this.fault("state", `${key} (${id.slice(0, 12)}) is ${words}`);
        return undefined;
      }
      await sleep(pollMs);
    }
  }

  /** Compares the log of an exited container; older: the rotated files. */
  log({ key, kills, bothKills, logPath }: Started, wanted: Streams, older: string[] = []): void {
    const files = [...older, logPath];
    const text = files.map((file) => textIfThere(file)).join("");
    const repeats = kills !== this.monitorKills;
    const mayEnd = bothKills !== this.bothKills;
    const options = { who: key, faults: this.tally.faults, repeats, mayEnd };
    this.tally.linesRepeated += compareLog(text, wanted, options);
    this.tally.logBytes += text.length;
    for (const file of files) rmSync(file, { force: true });
  }

  async remove(id: string): Promise<void> {
    await this.again(() => this.daemon.client.RemoveContainer({ container_id: id }));
  }

  async removeByKey(key: string): Promise<void> {
    const filter = { label_selector: { stress: key } };
    const { containers } = await this.again(() => this.daemon.client.ListContainers({ filter }));
    for (const { id } of containers) await this.remove(id!);
  }

  // -- pods -----------------------------------------------------------------------------------------

  /** Runs a pod; an interrupted one is removed and recreated. */
  async runPod(name: string, { handler = "", host = false } = {}): Promise<Pod> {
    for (let attempt = 0; attempt < attemptsMax; attempt++) {
      const more = { metadata: { name, attempt } };
      const config = host ? this.daemon.hostPodConfig(more) : this.daemon.podConfig(more);
      const made = await this.once(() => this.daemon.runPod(config, handler));
      if (made !== undefined) return { id: made.result, config };
      await this.removePodByName(name);
    }
    throw new Error(`pod ${name} was not made in ${attemptsMax} attempts`);
  }

  async removePod(id: string): Promise<void> {
    await this.again(() => this.daemon.client.StopPodSandbox({ pod_sandbox_id: id }));
    await this.again(() => this.daemon.client.RemovePodSandbox({ pod_sandbox_id: id }));
  }

  async removePodByName(name: string): Promise<void> {
    const { items } = await this.again(() => this.daemon.client.ListPodSandbox({}));
    const found = items.filter(({ metadata }) => metadata?.name === name);
    for (const { id } of found) await this.removePod(id!);
  }

  /** Records an unplanned failure. */
  failed(who: string, error: unknown): void {
    this.fault("call failed", `${who}: ${codeOf(error)}: ${messageOf(error)}`);
  }
}

function textIfThere(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return ""; // Rotated away, and the container ended before a new one was there.
  }
}
