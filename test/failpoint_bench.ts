// Runs one row of the failpoint table: a pod's life on a daemon with one failpoint armed, the calls of a
// kubelet afterwards, and a search for leaks. Also runs one cut: the same with a kill at any moment.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../src/base/errors.ts";
import { toLong } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { processesOfHanging } from "./failpoint_left.ts";
import type { Result, Row } from "./failpoints.ts";
import { until } from "./expect.ts";
import { busybox, Daemon } from "./harness.ts";
import { end } from "./host.ts";
import { busyboxImage } from "./image_maker.ts";
import { AddedText } from "./log_text.ts";
import { leaksBetween, type Scope, type Snapshot, takeSnapshot } from "./leaks.ts";
import { type Registry, startRegistry } from "./registry.ts";

const { NamespaceMode } = runtime.v1;
const pause = "example.test/pause:1";
const delayMs = 1_000;
/** Limit of Stop and of Remove: a failpoint delays several steps of each. */
const removeMs = 30_000;

export type RowOptions = {
  /** Plants a fault before the search for leaks. */
  sabotage?: (daemon: Daemon) => void;
  /** Time for background work of a step. */
  settleMs?: number;
};

export const victims = ["daemon", "monitor", "both"] as const;
/** share: the part of a life's duration after which the kill comes. */
export type Cut = { victim: (typeof victims)[number]; share: number };
export type CutResult = Pick<Result, "told" | "problems" | "ms">;

type Logs = { daemon: AddedText; monitor: AddedText };

export class Bench implements AsyncDisposable {
  readonly daemon: Daemon;
  readonly #registry: Registry;
  readonly #scope: Scope;
  #armed = "";
  #serial = 0;
  #lifeMs = 0;

  private constructor(daemon: Daemon, registry: Registry) {
    this.daemon = daemon;
    this.#registry = registry;
    const more = ["graph/cni", "graph/images", "graph/layers", "graph/set-aside"];
    const kept = [...daemon.scope.kept, ...more.map((name) => join(daemon.dir, name))];
    this.#scope = { ...daemon.scope, kept };
  }

  /** shim: the path of runc's shim, which then runs the containers. */
  static async open({ shim }: { shim?: string } = {}): Promise<Bench> {
    const registry = await startRegistry();
    const entry = { "runtime-type": "io.containerd.runc.v2", "runtime-path": shim };
    const runtimes = { runtimes: { shim: entry }, "default-runtime": "shim" };
    const daemon = new Daemon({
      config: {
        "pod-sandbox-image": pause,
        "insecure-registries": [registry.host],
        "keep-blobs": true,
        ...(shim === undefined ? {} : runtimes),
      },
      flags: ["--allow-failpoints"],
    });
    const bench = new Bench(daemon, registry);
    try {
      await registry.push("small", "1", busyboxImage({ Cmd: ["true"] }));
      const verifiers = join(daemon.dir, "verifiers");
      mkdirSync(verifiers);
      const accept = `#!/bin/sh\n[ ! -e ${join(daemon.dir, "hang")} ] || sleep 600\n`;
      writeFileSync(join(verifiers, "accept"), accept, { mode: 0o755 });
      daemon.writeConfig({ "image-verifier-dir": verifiers });
      mkdirSync(daemon.cniDir);
      daemon.writeNetwork();
      await daemon.start();
      await daemon.loadImage(busyboxImage(), busybox);
      await daemon.loadImage(busyboxImage({ Entrypoint: ["sleep", "4242"], Cmd: [] }), pause);
      // Creates what is created once and kept: chains of the packet filter, folders.
      const start = performance.now();
      await bench.#life(bench.#pod(), () => {});
      bench.#lifeMs = performance.now() - start;
      await bench.#image();
      return bench;
    } catch (error) {
      await bench[Symbol.asyncDispose]();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.daemon[Symbol.asyncDispose]();
    await this.#registry[Symbol.asyncDispose]();
  }

  async row(row: Row, options: RowOptions = {}): Promise<Result> {
    const result: Result = { ...row, hitBy: undefined, told: "", problems: [], ms: 0 };
    return this.#measured(result, () =>
      row.failpoint.includes(":left-")
        ? this.#leftRow(row, result)
        : this.#row(row, result, options),
    );
  }

  async cut(cut: Cut): Promise<CutResult> {
    const result: CutResult = { told: "", problems: [], ms: 0 };
    return this.#measured(result, () => this.#cut(cut, result));
  }

  async #measured<One extends CutResult>(result: One, act: () => Promise<void>): Promise<One> {
    const start = performance.now();
    try {
      await act();
    } catch (error) {
      result.problems.push(messageOf(error));
      await this.#startOver();
    }
    result.ms = performance.now() - start;
    return result;
  }

  async #cut({ victim, share }: Cut, result: CutResult): Promise<void> {
    const { daemon } = this;
    await this.#disarm(true);
    const before = takeSnapshot(this.#scope);
    const pod = this.#pod();
    const life = this.#life(pod, (what) => (result.told ||= what)).catch(
      (error: unknown) => (result.told ||= messageOf(error)),
    );
    await sleep(share * this.#lifeMs);
    if (victim !== "daemon") for (const pid of daemon.monitors()) end(pid);
    if (victim !== "monitor") await daemon.stop("SIGKILL");
    await life;
    if (victim !== "monitor") await daemon.start();
    await this.#removeAgain("the monitor ended");
    await this.#lookAgain(pod, result);
    await this.#tellLeaks(result, before, { sameProcesses: false });
  }

  async #row(row: Row, result: Result, options: RowOptions): Promise<void> {
    const { daemon } = this;
    await this.#arm(row);
    const before = takeSnapshot(this.#scope);
    const pids = daemon.scope.pids().join();
    const logs = this.#logs();
    using killer = this.#killWhenHit(row, logs);
    const pod = this.#pod();
    let failed = false;
    try {
      if (row.failpoint.includes(":image-")) await this.#image();
      else await this.#life(pod, (what) => (result.told ||= what));
    } catch (error) {
      failed = true;
      result.told ||= messageOf(error);
    }
    result.hitBy = await this.#hitBy(row, logs, killer);
    if (result.hitBy === undefined) result.problems.push("no process reached it");
    if (row.action === "delay" && failed) result.problems.push(`a call failed: ${result.told}`);
    await this.#afterwards(row, pod, result);
    options.sabotage?.(daemon);
    const sameProcesses = daemon.scope.pids().join() === pids;
    await this.#tellLeaks(result, before, { sameProcesses, settleMs: options.settleMs });
  }

  /**
   * Kills a process that waits for another one, and arms the failpoint for the start that is to end the other one.
   * Without the failpoint the next start must have done so, before any removal.
   */
  async #leftRow(row: Row, result: Result): Promise<void> {
    const { daemon } = this;
    await this.#disarm(true);
    const before = takeSnapshot(this.#scope);
    const pod = this.#pod();
    const ofMonitor = row.failpoint.includes("calls");
    const call = ofMonitor ? await this.#hangingExec(pod) : this.#hangingPull();
    const left = await processesOfHanging(call, this.#scope);
    rmSync(join(daemon.dir, "hang"), { force: true });
    if (ofMonitor) {
      process.kill(daemon.pid, "SIGSTOP"); // else it starts another monitor, unarmed
      for (const pid of daemon.monitors()) end(pid);
    }
    await daemon.stop("SIGKILL");
    const logs = this.#logs();
    {
      using killer = this.#killWhenHit(row, logs);
      const started = daemon.start(armedText(row)).catch((error: unknown) => {
        result.told ||= messageOf(error).split("\n")[0]!;
      });
      const hit = until("the failpoint is reached", () => this.#hit(row, logs) !== undefined);
      hit.catch(() => {}); // told below
      const failsAlways = ofMonitor && row.action === "error"; // each monitor has the failpoint
      await (failsAlways ? Promise.race([started, hit]) : started);
      result.hitBy = await this.#hitBy(row, logs, killer);
    }
    if (result.hitBy === undefined) result.problems.push("no process reached it");
    await this.#restart("", true);
    const now = takeSnapshot(this.#scope).things.process;
    for (const one of left.intersection(now)) result.problems.push(`not ended: ${one}`);
    await this.#removeAgain("the monitor ended");
    await this.#lookAgain(pod, result);
    await this.#tellLeaks(result, before, { sameProcesses: false });
  }

  #hangingPull(): () => Promise<unknown> {
    writeFileSync(join(this.daemon.dir, "hang"), "");
    return () => this.#image();
  }

  async #hangingExec(pod: PodSandboxConfig): Promise<() => Promise<unknown>> {
    const podId = await this.daemon.runPod(pod);
    const id = await this.daemon.run(podId, pod, ["sleep", "600"]);
    return () => this.daemon.exec(id, "sleep 600", 600);
  }

  /** Acts as a kubelet afterwards: removes everything listed, and may reuse the names. */
  async #afterwards(row: Row, pod: PodSandboxConfig, result: Result): Promise<void> {
    if (row.action === "kill daemon") await this.#disarm(false);
    // The failpoint may be in the removal, which then fails once.
    await this.#removeAgain(row.action === "error" ? "failpoint" : "the monitor ended");
    if (row.action !== "kill daemon") await this.#disarm(result.hitBy === "monitor");
    await this.#lookAgain(pod, result);
  }

  /** Repeats a call whose first failure was expected. */
  async #removeAgain(expected: string): Promise<void> {
    try {
      await this.#removeAll();
    } catch (error) {
      if (!messageOf(error).includes(expected)) throw error;
      await this.#removeAll();
    }
  }

  async #lookAgain(pod: PodSandboxConfig, result: CutResult): Promise<void> {
    const { daemon } = this;
    const podId = await daemon.runPod(pod);
    await daemon.removePod(podId);
    const { items } = await daemon.client.ListPodSandbox({});
    const { containers } = await daemon.client.ListContainers({});
    if (items.length + containers.length > 0)
      result.problems.push("pods or containers are still listed");
  }

  async #removeAll(): Promise<void> {
    const { items } = await this.daemon.client.ListPodSandbox({});
    for (const { id: pod_sandbox_id } of items) {
      await this.daemon.client.StopPodSandbox({ pod_sandbox_id }, { timeoutMs: removeMs });
      await this.daemon.client.RemovePodSandbox({ pod_sandbox_id }, { timeoutMs: removeMs });
    }
    await this.#removeImage();
  }

  async #removeImage(): Promise<void> {
    const image = `${this.#registry.host}/small:1`;
    await this.daemon.client.RemoveImage({ image: { image } });
  }

  /** Calls PullImage and RemoveImage. */
  async #image(): Promise<void> {
    const image = `${this.#registry.host}/small:1`;
    await this.daemon.client.PullImage({ image: { image } });
    await this.#removeImage();
  }

  /**
   * Covers all features: a pod with network, sysctl, pause container and image volume; an exit, an exec, a stop,
   * a kill.
   */
  async #life(pod: PodSandboxConfig, tell: (what: string) => void): Promise<void> {
    const { daemon } = this;
    const podId = await daemon.runPod(pod);
    const mounts = [{ container_path: "/image", readonly: true, image: { image: busybox } }];
    const exiting = await daemon.run(podId, pod, "echo up; exit 7", { mounts });
    const { exitCode, reason, status } = await daemon.exited(exiting);
    if (exitCode !== 7) {
      const known = exitCode === 255 && reason === "Unknown" && status.message !== "";
      if (!known) throw new Error(`exit code ${exitCode}, reason ${reason}: ${status.message}`);
      tell(`exit code not known: ${status.message}`);
    }
    const stopped = await daemon.run(podId, pod, ["sleep", "600"]);
    const linux = { cpu_shares: toLong(512) };
    await daemon.client.UpdateContainerResources({ container_id: stopped, linux });
    await daemon.exec(stopped, "true");
    await daemon.client.StopContainer({ container_id: stopped, timeout: toLong(5) });
    await daemon.client.RemoveContainer({ container_id: stopped });
    await daemon.run(podId, pod, ["sleep", "600"]);
    await daemon.removePod(podId);
  }

  #pod(): PodSandboxConfig {
    const namespace_options = { network: NamespaceMode.POD, pid: NamespaceMode.POD };
    return this.daemon.podConfig({
      metadata: { name: `life-${++this.#serial}` },
      linux: {
        sysctls: { "net.ipv4.ip_unprivileged_port_start": "0" },
        security_context: { namespace_options },
      },
    });
  }

  #logs(): Logs {
    const { logFile, dir } = this.daemon;
    return {
      daemon: new AddedText(logFile),
      monitor: new AddedText(join(dir, "state/monitor.log")),
    };
  }

  #hit(row: Row, logs: Logs): "daemon" | "monitor" | undefined {
    const line = `failpoint failpoint=${row.failpoint} `;
    if (logs.daemon.text.includes(line)) return "daemon";
    return logs.monitor.text.includes(line) ? "monitor" : undefined;
  }

  /** Waits, since some steps run after the call that causes them. */
  async #hitBy(
    row: Row,
    logs: Logs,
    killer: { done: boolean },
  ): Promise<"daemon" | "monitor" | undefined> {
    for (let tries = 0; tries < 40; tries++) {
      const hit = this.#hit(row, logs);
      if (hit !== undefined && (killer.done || !row.action.startsWith("kill"))) return hit;
      await sleep(25);
    }
    return this.#hit(row, logs);
  }

  /** Kills a process while the failpoint delays it or the other one. */
  #killWhenHit(row: Row, logs: Logs): Disposable & { done: boolean } {
    const killer = { done: false, [Symbol.dispose]: () => clearInterval(timer) };
    const timer = setInterval(() => {
      if (this.#hit(row, logs) === undefined) return;
      clearInterval(timer);
      if (row.action === "kill daemon") void this.daemon.stop("SIGKILL");
      if (row.action === "kill monitor") for (const pid of this.daemon.monitors()) end(pid);
      killer.done = true;
    }, 20);
    return killer;
  }

  async #tellLeaks(
    result: CutResult,
    before: Snapshot,
    { sameProcesses, settleMs = 6_000 }: { sameProcesses: boolean; settleMs?: number },
  ): Promise<void> {
    const leaks = await this.#leaks(before, sameProcesses, settleMs);
    result.problems.push(...leaks.map((leak) => `left: ${leak}`));
    if (leaks.length > 0) await this.#startOver();
  }

  async #leaks(before: Snapshot, sameProcesses: boolean, settleMs: number): Promise<string[]> {
    // A new process has different descriptors.
    const descriptors = () => (sameProcesses ? before : takeSnapshot(this.#scope)).descriptors;
    const end = Date.now() + settleMs;
    for (;;) {
      const now = takeSnapshot(this.#scope);
      const leaks = leaksBetween({ ...before, descriptors: descriptors() }, now);
      if (leaks.length === 0 || Date.now() > end) return leaks;
      await sleep(100);
    }
  }

  async #arm(row: Row): Promise<void> {
    await this.#restart(armedText(row), true);
  }

  async #disarm(monitorToo: boolean): Promise<void> {
    if (this.#armed !== "") await this.#restart("", monitorToo);
  }

  /** Ends the monitor, and with it its failpoints. */
  async #restart(failpoints: string, monitorToo: boolean): Promise<void> {
    await this.daemon.stop();
    if (monitorToo) for (const pid of this.daemon.monitors()) end(pid);
    this.#armed = failpoints;
    await this.daemon.start(failpoints);
  }

  /** Replaces the daemon after a failed row, so that the next one starts clean. */
  async #startOver(): Promise<void> {
    await this.#restart("", true);
    await this.#removeAll().catch(() => {});
  }
}

function armedText({ failpoint, action }: Row): string {
  return `${failpoint}=${action === "error" ? "error" : `delay:${delayMs}`}`;
}
