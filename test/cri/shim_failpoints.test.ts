// Tests the life of a container with containerd's failpoint shim, whose calls fail, panic or take a second, once or
// always. Calls are retried as a kubelet does; then the pod must be able to run another container, and nothing may
// be left. `test/shims failpoint` builds the shim.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { messageOf } from "../../src/base/errors.ts";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { failpointShim, shimSockets } from "../shim_programs.ts";

const annotation = "io.containerd.runtime.v2.shim.failpoint";
const retriesMax = 4;
const methods = [
  "Create",
  "Start",
  "Wait",
  "State",
  "Connect",
  "Exec",
  "Kill",
  "Delete",
  "Shutdown",
  "Stats",
  "Update",
];
/** Called for the pod's first container, too, for which they succeed. */
const calledAtFirst = new Set(["Create", "Start", "Wait", "Connect"]);
const actions = ["1*error(planted)", "2*error(planted)", "1*panic(planted)", "1*delay(1000)"];

class Life {
  readonly #daemon: Daemon;
  readonly #pod: PodSandboxConfig;
  readonly #podId: string;
  /** Messages of the calls that failed. */
  readonly errors: string[] = [];

  constructor(daemon: Daemon, pod: PodSandboxConfig, podId: string) {
    this.#daemon = daemon;
    this.#pod = pod;
    this.#podId = podId;
  }

  /** Retries a call until it succeeds. @throws its last error. */
  async #retried<T>(call: () => Promise<T>): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await call();
      } catch (error) {
        this.errors.push(messageOf(error));
        if (attempt === retriesMax) throw error;
      }
    }
  }

  /** Starts a container, with the next attempt after one that has failed, as a kubelet does. */
  async start(script: string): Promise<string> {
    return this.#retried(async () => {
      const id = await this.#daemon.create(this.#podId, this.#pod, script);
      try {
        await this.#daemon.client.StartContainer({ container_id: id });
        return id;
      } catch (error) {
        await this.#retried(() => this.#daemon.client.RemoveContainer({ container_id: id }));
        throw error;
      }
    });
  }

  async use(id: string): Promise<void> {
    const { client } = this.#daemon;
    await this.#retried(() => this.#daemon.exec(id, "echo hi"));
    await this.#retried(() => client.ContainerStats({ container_id: id }));
    const linux = { cpu_shares: toLong(512) };
    await this.#retried(() => client.UpdateContainerResources({ container_id: id, linux }));
  }

  async stop(id: string): Promise<void> {
    const stop = { container_id: id, timeout: toLong(1) };
    await this.#retried(() => this.#daemon.client.StopContainer(stop));
    await this.#retried(() => this.#daemon.client.RemoveContainer({ container_id: id }));
  }

  async removePod(): Promise<void> {
    const { client } = this.#daemon;
    await this.#retried(() => client.StopPodSandbox({ pod_sandbox_id: this.#podId }));
    await this.#retried(() => client.RemovePodSandbox({ pod_sandbox_id: this.#podId }));
  }
}

describe.skipIf(!existsSync(failpointShim))("containerd's failpoint shim", () => {
  let daemon: Daemon;
  beforeAll(async () => {
    const shim = {
      "runtime-type": "io.containerd.runc.v2",
      "runtime-path": failpointShim,
      "pod-annotations": [`${annotation}.*`],
    };
    daemon = await startDaemon({ config: { runtimes: { shim }, "default-runtime": "shim" } });
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    await daemon.run(podId, pod, "true");
    await daemon.removePod(podId); // it has made what lasts
  });
  afterAll(() => daemon?.[Symbol.asyncDispose]());

  const cases = methods.flatMap((method) => actions.map((action) => [method, action] as const));
  test.each(cases)("%s: %s", async (method, action) => {
    const before = daemon.snapshot();
    const socketsBefore = shimSockets();
    const terms = calledAtFirst.has(method) ? `1*off->${action}` : action;
    const pod = daemon.hostPodConfig({ annotations: { [`${annotation}.${method}`]: terms } });
    const podId = await daemon.runPod(pod);
    const other = await daemon.run(podId, pod, "sleep 1000"); // keeps the shim
    const life = new Life(daemon, pod, podId);
    const isKilled = action.includes("panic");

    const id = await life.start("sleep 1000");
    // A shim that panics takes its containers along, and then there is nothing to use.
    if (!isKilled) await life.use(id);
    await life.stop(id);
    const next = await life.start("exit 6");
    const { exitCode, status } = await daemon.exited(next);
    if (isKilled && exitCode === 137) expect(status.message).toContain("its shim has ended");
    else expect(exitCode).toBe(6);
    if (!isKilled) expect((await daemon.exec(other, "echo hi")).stdout).toBe("hi\n");
    await life.removePod();

    for (const message of life.errors) expect(message).toMatch(/planted|shim/);
    const leaks = await daemon.leaksSince(before);
    expect(leaks.filter((leak) => !leak.startsWith("descriptor"))).toEqual([]);
    // Other tests may have shims meanwhile.
    await until("no socket is left", () => shimSockets().difference(socketsBefore).size === 0);
  });
});
