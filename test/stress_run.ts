// Runs the loads of a plan all at once, with disturbances, events, lists and stats at the same time, and
// finally checks for leaks.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Checker } from "./event_check.ts";
import { Recorder } from "./event_recorder.ts";
import { random } from "./random.ts";
import { Calls, type Tally } from "./stress_calls.ts";
import { countFaults, readOwnLog } from "./stress_check.ts";
import { type Disturbance, Disturber } from "./stress_disturb.ts";
import { type Load, type LoadName, loadNames, loads, logger, type Stage } from "./stress_loads.ts";
import { slowHandler, type StressNode } from "./stress_node.ts";

export type StressPlan = {
  seed: number;
  /** Duration of the run; 0: until the counts are reached. */
  minutes: number;
  counts: Record<LoadName, number>;
  /** Concurrent logging containers. */
  loggers: number;
  /** Concurrent execs, each on its own connection. */
  atOnce: number;
  /** Number of disturbances; a timed run has them continuously. */
  disturbances: number;
  /** Kinds of disturbances, applied in random order. */
  kinds: Disturbance[];
};

/** Progress of a run; plain data. */
export type StressRecord = {
  seed: number;
  plan: StressPlan;
  done: Record<LoadName | "loggers" | "disturbances", number>;
  minutesDone: number;
  tally: Tally;
  isOver: boolean;
};

/** Limit of recorded faults. */
const faultsMax = 1_000;
/** After this many wrong lists the run stops. */
const wrongStatesMax = 2;
const targetCount = 3;
const watchMs = 300;
const reportMs = 10_000;
/** Pause between two disturbances. */
const calmMsMax = 6_000;
const drainMs = 500;
const leakMs = 30_000;
const seconds = { create: 1, start: 0.3, delete: 0.5, exec: 0.3, cni: 1 } as const;

export class Stress {
  readonly #node: StressNode;
  readonly #record: StressRecord;
  readonly #calls: Calls;
  readonly #recorder: Recorder;
  readonly #checker = new Checker();
  readonly #next: Record<string, number>;
  #faultsOfEvents = 0;
  #deadline = Number.POSITIVE_INFINITY;
  #loading = true;
  #isStopped = false;

  constructor(node: StressNode, record: StressRecord) {
    this.#node = node;
    this.#record = record;
    this.#calls = new Calls(node, record.tally);
    this.#recorder = new Recorder(node.daemon);
    this.#next = { ...record.done };
  }

  /** Ends the loads; running items are finished and removed. The record contains the rest. */
  stop(): void {
    this.#isStopped = true;
  }

  get wasStopped(): boolean {
    return this.#isStopped;
  }

  async run(report: (line: string) => void): Promise<void> {
    const { daemon } = this.#node;
    await this.#warmUp();
    const before = daemon.snapshot();
    const pids = daemon.scope.pids().join();
    await this.#recorder.connect();
    const stage = await this.#setStage();
    const disturber = new Disturber(stage, this.#recorder);
    await this.#load(stage, disturber, report);
    disturber.checkMonitor();
    this.#node.stopServing();
    this.#calls.closeClients();
    if (this.#isHopeless) return disturber.killMonitor(); // the next one lets everything be removed
    for (const what of Object.keys(seconds)) this.#node.sleep(what as keyof typeof seconds, 0);
    await this.#step("the end", () => this.#removeAll());
    const isSame = daemon.scope.pids().join() === pids;
    const compared = isSame ? before : { ...before, descriptors: new Map<string, number>() };
    for (const leak of await daemon.leaksSince(compared, leakMs)) {
      if (isSame || !leak.startsWith("descriptor")) this.#calls.fault("leak", leak);
    }
    disturber.checkMonitor();
    this.#readLogs();
  }

  async #step(who: string, act: () => Promise<void>): Promise<void> {
    try {
      await act();
    } catch (error) {
      this.#calls.failed(who, error);
    }
  }

  /** Creates what is created once and kept: chains of the packet filter, folders, a log thread. */
  async #warmUp(): Promise<void> {
    const calls = this.#calls;
    for (const handler of ["", slowHandler]) {
      const pod = await calls.runPod(`warm${handler}`, { handler });
      const started = await calls.start({ key: `warm${handler}`, pod, command: "echo warm" });
      await calls.ended(started, 0);
      await calls.removePod(pod.id);
    }
  }

  async #setStage(): Promise<Stage> {
    const calls = this.#calls;
    const pod = await calls.runPod("containers", { host: true });
    const slowPod = await calls.runPod("slow", { host: true, handler: slowHandler });
    const network = await calls.runPod("network");
    await this.#node.serve(network);
    const command = "trap 'exit 0' TERM; while true; do sleep 0.2; done"; // an init that reaps
    const keys = Array.from({ length: targetCount }, (_, index) => `target-${index}`);
    const targets = await Promise.all(keys.map((key) => calls.start({ key, pod, command })));
    for (const [what, some] of Object.entries(seconds)) {
      this.#node.sleep(what as keyof typeof seconds, some);
    }
    return { calls, pod, slowPod, network, targets };
  }

  async #load(stage: Stage, disturber: Disturber, report: (line: string) => void): Promise<void> {
    const { minutes, counts, loggers, atOnce } = this.#record.plan;
    const started = performance.now();
    const minutesBefore = this.#record.minutesDone;
    if (minutes > 0) this.#deadline = started + (minutes - minutesBefore) * 60_000;
    const watching = [
      this.#while(watchMs, () => this.#watch()),
      this.#while(drainMs, async () => this.#drain()),
      this.#while(reportMs, async () => {
        this.#record.minutesDone = minutesBefore + (performance.now() - started) / 60_000;
        report(this.#summary());
      }),
      this.#slots("loggers", { atOnce: loggers, run: logger }, stage),
    ];
    const names = loadNames.filter((name) => minutes > 0 || counts[name] > 0);
    const working = names.map((name) => {
      const load = loads[name];
      return this.#slots(name, name === "execs" ? { ...load, atOnce } : load, stage);
    });
    await Promise.all([...working, this.#disturb(disturber)]);
    this.#loading = false;
    await Promise.all(watching);
    this.#record.minutesDone = minutesBefore + (performance.now() - started) / 60_000;
  }

  get #isHopeless(): boolean {
    const { faults } = this.#record.tally;
    return countFaults(faults) > faultsMax || (faults.state?.count ?? 0) > wrongStatesMax;
  }

  get #isLate(): boolean {
    return this.#isStopped || this.#isHopeless || performance.now() > this.#deadline;
  }

  async #while(pauseMs: number, act: () => Promise<void>): Promise<void> {
    while (this.#loading) {
      await this.#step("watching", act);
      await sleep(pauseMs);
    }
  }

  /** Draws the same for an item wherever a run starts. */
  async #slots(name: LoadName | "loggers", load: Load, stage: Stage): Promise<void> {
    const { plan, done } = this.#record;
    const counted = plan.minutes === 0 && name !== "loggers" ? plan.counts[name] : Infinity;
    const mayGoOn = () => !this.#isLate && (name !== "loggers" || this.#loading);
    const slot = async (slot: number) => {
      while (mayGoOn() && this.#next[name]! < counted) {
        const index = this.#next[name]!++;
        const draw = random(plan.seed * 1_000_003 + index);
        try {
          await load.run(stage, { index, slot, draw });
        } catch (error) {
          this.#calls.failed(`${name} ${index}`, error);
          await sleep(100);
        }
        done[name]++;
      }
    };
    await Promise.all(Array.from({ length: load.atOnce }, (_, index) => slot(index)));
  }

  /** Draws each kind once in random order, then again. */
  async #disturb(disturber: Disturber): Promise<void> {
    const { plan, done } = this.#record;
    const { kinds } = plan;
    const isOver = () => (plan.minutes > 0 ? false : done.disturbances >= plan.disturbances);
    while (!this.#isLate && !isOver()) {
      const round = Math.floor(done.disturbances / kinds.length);
      const draw = random(plan.seed * 7_919 + round);
      const order = kinds.map((kind) => ({ kind, at: draw() })).toSorted((a, b) => a.at - b.at);
      await sleep(random(plan.seed + done.disturbances)() * calmMsMax);
      const { kind } = order[done.disturbances % kinds.length]!;
      await this.#step(kind, () => disturber.run(kind));
      done.disturbances++;
    }
  }

  /** Calls lists and stats like a kubelet. */
  async #watch(): Promise<void> {
    const calls = this.#calls;
    const slot = this.#record.plan.atOnce;
    const { containers } = await calls.again(() => calls.client(slot).ListContainers({}));
    if (new Set(containers.map(({ id }) => id)).size !== containers.length) {
      calls.fault("state", "a container is listed twice");
    }
    await calls.again(() => calls.daemon.client.ListContainerStats({}));
    await calls.again(() => calls.daemon.client.ListPodSandboxStats({}));
    await calls.again(() => calls.daemon.client.ListPodSandboxMetrics({}));
    await calls.again(() => calls.daemon.client.ImageFsInfo({}));
  }

  /** Checks and then drops the received events. */
  #drain(): void {
    const items = [...this.#recorder.history.splice(0), ...this.#calls.expected.splice(0)];
    for (const item of items) {
      this.#checker.take(item);
      if (item.kind === "event") this.#record.tally.events++;
    }
    for (const problem of this.#checker.problems.slice(this.#faultsOfEvents)) {
      this.#calls.fault("event", problem);
    }
    this.#faultsOfEvents = this.#checker.problems.length;
  }

  async #removeAll(): Promise<void> {
    const { daemon } = this.#node;
    await this.#settleEvents();
    await daemon.removeAllPods();
    const { items } = await daemon.client.ListPodSandbox({});
    const { containers } = await daemon.client.ListContainers({});
    if (items.length + containers.length > 0)
      this.#calls.fault("state", "something is listed still");
    await this.#settleEvents();
    this.#recorder.disconnect();
  }

  /**
   * Compares events with lists while no calls run. A lost subscription is a fault, but does not end the run.
   */
  async #settleEvents(): Promise<void> {
    await this.#step("the events", () => this.#recorder.quiet());
    this.#drain();
  }

  #readLogs(): void {
    const { daemon } = this.#node;
    const monitorLog = readFileSync(join(daemon.dir, "state/monitor.log"), "utf8");
    const { faults, warnings } = this.#record.tally;
    for (const [who, log] of Object.entries({ daemon: daemon.log, monitor: monitorLog })) {
      for (const [shape, count] of readOwnLog(log, { who, faults })) {
        warnings[`${who}: ${shape}`] = (warnings[`${who}: ${shape}`] ?? 0) + count;
      }
    }
  }

  #summary(): string {
    const { done, tally, minutesDone } = this.#record;
    const some = Object.entries(done).filter(([, count]) => count > 0);
    const counts = some.map(([name, count]) => `${count} ${name}`);
    const faults = Object.entries(tally.faults).map(([kind, { count, first }]) => {
      return `\n    ${count} ${kind}: ${first.at(-1)}`;
    });
    return `${minutesDone.toFixed(1)} min: ${counts.join(", ")}${faults.join("")}`;
  }
}
