// Tests pod events under churn: 20 containers at a time exit by codes, signals and OOM kills while the daemon
// is killed and restarted; the events must agree with List and Status (event_check.ts). Then measures the
// latency of an event against a bare call. `bun test/events.ts [--containers 500] [--at-once 20] [--restarts
// 6] [--timed 500] [--seed 1]`; results add up in test/.cache/events.json.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { codeOf } from "../src/base/errors.ts";
import { nowNs } from "../src/base/clock.ts";
import { toBigInt, toLong } from "../src/base/int64.ts";
import { connect } from "../src/cli/client.ts";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { runtime } from "../src/proto/messages.js";
import { check, nameOf, type Event, type Item } from "./event_check.ts";
import { Recorder } from "./event_recorder.ts";
import { type Daemon, startDaemon } from "./harness.ts";
import { random } from "./random.ts";
import { median } from "./median.ts";

export type EventPlan = {
  containers: number;
  atOnce: number;
  /** Restarts of the daemon, every second one by SIGKILL. */
  restarts: number;
  seed: number;
};

/** One container's life: how it ends, and the events expected of it. */
type Life = { script: string; exitCode: number; reason: string; act?: "kill" | "usr1" | "stop" };

const memoryBytes = 16 << 20;
const containersOfAPod = 5;
const SIGKILL = 9;
/** Two events each make 100 per second. */
const pairMs = 20;
const pairsAtOnce = 8;

class Churn {
  readonly #daemon: Daemon;
  readonly #recorder: Recorder;
  readonly #plan: EventPlan;
  readonly #draw: () => number;
  #made = 0;
  /** Resolves once the daemon runs. */
  #up = Promise.resolve();

  constructor(daemon: Daemon, recorder: Recorder, plan: EventPlan) {
    this.#daemon = daemon;
    this.#recorder = recorder;
    this.#plan = plan;
    this.#draw = random(plan.seed);
  }

  async run(report: (line: string) => void): Promise<void> {
    await this.#recorder.connect();
    const slots = Array.from({ length: this.#plan.atOnce }, () => this.#slot());
    const done = Promise.all(slots);
    for (let restart = 1; restart <= this.#plan.restarts; restart++) {
      const goal = (this.#plan.containers * restart) / (this.#plan.restarts + 1);
      while (this.#made < goal) await Promise.race([sleep(50), done]);
      await this.#restart(restart % 2 === 0 ? "SIGTERM" : "SIGKILL");
      report(
        `${this.#made} containers, ${restart} restarts, ${this.#recorder.events.length} events`,
      );
    }
    await done;
    await this.#stay();
    await this.#recorder.quiet();
    await this.#daemon.removeAllPods();
    await this.#recorder.quiet();
    this.#recorder.disconnect();
  }

  async #restart(signal: NodeJS.Signals): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#up = promise;
    await this.#daemon.restart(signal);
    await this.#recorder.connect();
    resolve();
  }

  /** Runs a pod that stays until the end, with a container of each kind. */
  async #stay(): Promise<void> {
    const pod = this.#daemon.hostPodConfig();
    const podId = await this.#daemon.runPod(pod);
    await this.#daemon.create(podId, pod, "true");
    await this.#daemon.run(podId, pod, "sleep 300");
    await this.#daemon.exited(await this.#daemon.run(podId, pod, "exit 7"));
  }

  /** Runs pods in turn, each with some containers; removes those that a restart interrupted. */
  async #slot(): Promise<void> {
    while (this.#made < this.#plan.containers) {
      const pod = this.#daemon.hostPodConfig();
      try {
        const podId = await this.#daemon.runPod(pod);
        for (
          let count = 0;
          count < containersOfAPod && this.#made < this.#plan.containers;
          count++
        ) {
          this.#made++;
          await this.#live(podId, pod);
        }
        await this.#daemon.removePod(podId);
      } catch (error) {
        if (!["UNAVAILABLE", "CANCELLED"].includes(codeOf(error))) throw error;
        await this.#up;
        await this.#removeByName(pod);
      }
    }
  }

  async #removeByName(pod: PodSandboxConfig): Promise<void> {
    const { items } = await this.#daemon.client.ListPodSandbox({});
    const found = items.find(({ metadata }) => metadata?.name === pod.metadata?.name);
    if (found !== undefined) await this.#daemon.removePod(found.id!);
  }

  async #live(podId: string, pod: PodSandboxConfig): Promise<void> {
    const daemon = this.#daemon;
    const drawn = this.#draw();
    if (drawn < 0.05) {
      const id = await daemon.create(podId, pod, "true");
      await daemon.client.RemoveContainer({ container_id: id });
      return;
    }
    const life = this.#life(drawn);
    const limit = toLong(memoryBytes);
    const resources = { memory_limit_in_bytes: limit, memory_swap_limit_in_bytes: limit };
    const id = await daemon.create(podId, pod, life.script, { linux: { resources } });
    await daemon.client.StartContainer({ container_id: id });
    if (life.act === "stop") {
      await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
    } else if (life.act !== undefined) await this.#signal(id, life.act);
    await daemon.exited(id, 60_000);
    const { exitCode, reason } = life;
    this.#recorder.history.push({ kind: "expected", id, exitCode, reason });
    if (this.#draw() < 0.8) await daemon.client.RemoveContainer({ container_id: id });
  }

  #life(drawn: number): Life {
    const code = Math.floor(this.#draw() * 256);
    const killed = { script: "sleep 300", exitCode: 128 + SIGKILL, reason: "Error" };
    if (drawn < 0.2)
      return { script: "exec tail -c 64m /dev/zero", exitCode: 137, reason: "OOMKilled" };
    if (drawn < 0.3) return { ...killed, act: "kill" };
    if (drawn < 0.4) return { ...killed, act: "stop" };
    const reason = code === 0 ? "Completed" : "Error";
    if (drawn < 0.55) {
      const script = `trap 'exit ${code}' USR1; while true; do usleep 10000; done`;
      return { script, exitCode: code, reason, act: "usr1" };
    }
    return {
      script: `usleep ${Math.floor(this.#draw() * 200_000)}; exit ${code}`,
      exitCode: code,
      reason,
    };
  }

  /** Signals the process itself, repeatedly until it exits, since a trap may not be set yet. */
  async #signal(id: string, act: "kill" | "usr1"): Promise<void> {
    for (let tries = 0; tries < 100; tries++) {
      const { status, info } = await this.#daemon.client.ContainerStatus({
        container_id: id,
        verbose: true,
      });
      if (status?.state !== runtime.v1.ContainerState.CONTAINER_RUNNING) return;
      const { pid } = JSON.parse(info["info"]!) as { pid: number };
      try {
        if (pid > 0) process.kill(pid, act === "kill" ? "SIGKILL" : "SIGUSR1");
      } catch {
        return; // it exited meanwhile
      }
      await sleep(20);
    }
  }
}

export async function churn(
  daemon: Daemon,
  plan: EventPlan,
  report: (line: string) => void = () => {},
): Promise<Item[]> {
  const recorder = new Recorder(daemon);
  await new Churn(daemon, recorder, plan).run(report);
  return recorder.history;
}

export type Timing = { eventsPerS: number; eventMs: number[]; callMs: number[] };

/** Measures latency at 100 events/s of created and removed containers: arrival against commit time. */
export async function timeEvents(daemon: Daemon, pairs: number): Promise<Timing> {
  using listener = connect(`unix://${daemon.socket}`);
  const abort = new AbortController();
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const arrivals: { event: Event; atNs: bigint }[] = [];
  const listening = (async () => {
    for await (const event of listener.GetContainerEvents({}, { signal: abort.signal })) {
      arrivals.push({ event, atNs: nowNs() });
    }
  })().catch(() => {});
  const callMs: number[] = [];
  const offsetNs = await clockOffset(daemon, podId);
  const begin = performance.now();
  const onePair = async () => {
    const id = await daemon.create(podId, pod, "true");
    await daemon.client.RemoveContainer({ container_id: id });
    const start = performance.now();
    await listener.Version({});
    callMs.push(performance.now() - start);
  };
  const underWay = new Set<Promise<void>>();
  for (let pair = 0; pair < pairs; pair++) {
    // On schedule, even if earlier ones take longer.
    await sleep(Math.max(0, begin + pair * pairMs - performance.now()));
    while (underWay.size >= pairsAtOnce) await Promise.race(underWay);
    const one = onePair().finally(() => underWay.delete(one));
    underWay.add(one);
  }
  await Promise.all(underWay);
  const seconds = (performance.now() - begin) / 1000;
  await sleep(200);
  abort.abort();
  await listening;
  await daemon.removePod(podId);
  const eventMs = arrivals.map(
    ({ event, atNs }) => Number(atNs - toBigInt(event.created_at) + offsetNs) / 1e6,
  );
  return { eventsPerS: arrivals.length / seconds, eventMs, callMs };
}

/** Estimates the offset of the daemon's clock by its quickest answer. */
async function clockOffset(daemon: Daemon, podId: string): Promise<bigint> {
  let best = { roundNs: 1n << 62n, offsetNs: 0n };
  for (let tries = 0; tries < 200; tries++) {
    const before = nowNs();
    const { timestamp } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    const after = nowNs();
    const offsetNs = toBigInt(timestamp) - (before + after) / 2n;
    if (after - before < best.roundNs) best = { roundNs: after - before, offsetNs };
  }
  return best.offsetNs;
}

function words(history: Item[], problems: string[]): string {
  const events = history.flatMap((item) => (item.kind === "event" ? [nameOf(item.event)] : []));
  const counts = ["CREATED", "STARTED", "STOPPED", "DELETED"].map(
    (name) => `${events.filter((event) => event === name).length} ${name}`,
  );
  const asked = history.filter((item) => item.kind === "status").length;
  return `${events.length} events (${counts.join(", ")}), ${asked} statuses compared: ${problems.length} faults`;
}

function addToRecord(run: object): string {
  const folder = join(import.meta.dirname, ".cache");
  const file = join(folder, "events.json");
  mkdirSync(folder, { recursive: true });
  let runs: object[] = [];
  try {
    runs = JSON.parse(readFileSync(file, "utf8")) as object[];
  } catch {
    // There is no record before the first run.
  }
  runs.push(run);
  writeFileSync(file, JSON.stringify(runs, null, 2));
  const clean = runs.filter((one) => (one as { faults: number }).faults === 0).length;
  return `${runs.length} runs ever, ${clean} clean`;
}

async function main(): Promise<number> {
  const numbers = { containers: 500, "at-once": 20, restarts: 6, timed: 500, seed: 1 };
  const options = Object.fromEntries(
    Object.entries(numbers).map(([key, value]) => [
      key,
      { type: "string" as const, default: String(value) },
    ]),
  );
  const { values } = parseArgs({ options });
  const number = (key: keyof typeof numbers) => Number(values[key]);
  await using daemon = await startDaemon({ config: { "enable-pod-events": true } });
  const plan = {
    containers: number("containers"),
    atOnce: number("at-once"),
    restarts: number("restarts"),
    seed: number("seed"),
  };
  const history = await churn(daemon, plan, (line) => console.log(line));
  const problems = check(history);
  for (const problem of problems) console.log(`  ${problem}`);
  console.log(words(history, problems));
  const { eventsPerS, eventMs, callMs } = await timeEvents(daemon, number("timed"));
  const [event, call] = [median(eventMs), median(callMs)];
  const ratio = event / call;
  console.log(
    `at ${eventsPerS.toFixed(0)} events/s: ${event.toFixed(2)} ms from commit to client, a bare call ${call.toFixed(2)} ms: ratio ${ratio.toFixed(1)} (at most 5)`,
  );
  console.log(addToRecord({ ...plan, faults: problems.length, eventMs: event, callMs: call }));
  return problems.length === 0 && ratio <= 5 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
