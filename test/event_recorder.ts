// Records the pod events of a daemon, and lists its pods at the start of a history and whenever no calls run.
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { codeOf } from "../src/base/errors.ts";
import { toBigInt } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";
import { nameOf, type Event, type Item, type PodStatus } from "./event_check.ts";
import type { Daemon } from "./harness.ts";

/** Records a client's view across restarts of the daemon. */
export class Recorder {
  readonly #daemon: Daemon;
  readonly history: Item[] = [];
  /** Codes of subscriptions that the daemon ended unexpectedly. */
  readonly failures: string[] = [];
  #subscriber: ChildProcess | undefined;
  /** Events that arrive before the baseline is known. */
  #held: Event[] | undefined;

  constructor(daemon: Daemon) {
    this.#daemon = daemon;
  }

  get events(): Event[] {
    return this.history.flatMap((item) => (item.kind === "event" ? [item.event] : []));
  }

  /** Subscribes, and lists the pods as the baseline. */
  async connect(): Promise<void> {
    this.#held = [];
    await this.#subscribe();
    const { pods, toNs } = await this.#list();
    this.history.push({ kind: "baseline", pods, toNs });
    const held = this.#held;
    this.#held = undefined;
    for (const event of held) this.#take(event);
  }

  disconnect(): void {
    this.#subscriber?.stdin!.end();
  }

  /** Subscribes in a separate process; event_subscriber.ts gives the reason. */
  #subscribe(): Promise<void> {
    const script = join(import.meta.dirname, "event_subscriber.ts");
    const argv = [script, `unix://${this.#daemon.socket}`];
    const subscriber = spawn(process.execPath, argv, { stdio: ["pipe", "pipe", "inherit"] });
    this.#subscriber = subscriber;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    createInterface({ input: subscriber.stdout }).on("line", (line) => {
      if (line === "ready") return resolve();
      if (!line.startsWith("end ")) return this.#received(line);
      const code = line.slice("end ".length);
      reject(new Error(`the subscription to pod events failed to start: ${code}`));
      if (!["CANCELLED", "UNAVAILABLE"].includes(code)) this.failures.push(code);
    });
    return promise;
  }

  #received(line: string): void {
    const event = runtime.v1.ContainerEventResponse.decode(Buffer.from(line, "base64"));
    if (this.#held === undefined) this.#take(event);
    else this.#held.push(event);
  }

  #take(event: Event): void {
    this.history.push({ kind: "event", event });
    const id = event.container_id;
    if (nameOf(event) === "STOPPED" && id !== event.pod_sandbox_status?.id) void this.#ask(id);
  }

  async #ask(id: string): Promise<void> {
    try {
      const status = await this.#daemon.status(id);
      this.history.push({ kind: "status", id, status });
    } catch (error) {
      if (!["NOT_FOUND", "UNAVAILABLE", "CANCELLED"].includes(codeOf(error))) throw error;
    }
  }

  async #list(): Promise<{ pods: PodStatus[]; toNs: bigint }> {
    const { client } = this.#daemon;
    const { items } = await client.ListPodSandbox({});
    const pods: PodStatus[] = [];
    for (const { id } of items) {
      try {
        pods.push(await client.PodSandboxStatus({ pod_sandbox_id: id! }));
      } catch (error) {
        if (codeOf(error) !== "NOT_FOUND") throw error;
      }
    }
    const times = pods.map((pod) => toBigInt(pod.timestamp));
    return { pods, toNs: times.reduce((a, b) => (a > b ? a : b), 0n) };
  }

  /** Waits for the events of a pod that is created and removed now, then lists; no other calls may run. */
  async quiet(): Promise<void> {
    const marker = await this.#daemon.runPod(this.#daemon.hostPodConfig());
    await this.#daemon.removePod(marker);
    const isEnd = (event: Event) => event.container_id === marker && nameOf(event) === "DELETED";
    for (let tries = 0; !this.events.some(isEnd); tries++) {
      const [failure] = this.failures;
      if (failure !== undefined)
        throw new Error(`the subscription to pod events ended: ${failure}`);
      if (tries > 1000) throw new Error("the events of the last pod do not arrive");
      await sleep(20);
    }
    this.history.push({ kind: "quiet", pods: (await this.#list()).pods });
  }
}
