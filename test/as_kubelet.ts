// Makes the calls of a kubelet with generic PLEG that probes each of its containers.
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../src/base/int64.ts";
import { timed, type Times } from "./call_times.ts";
import type { Daemon } from "./harness.ts";

export const probeMs = 2_000;

type Calls = {
  /** The containers that are probed. */
  ids: string[];
  signal: AbortSignal;
  /** Gets the duration of each call. */
  times: Times;
};

/** Its promise resolves when the calls have ended. @throws Error of a probe that fails. */
export async function asKubelet({ client }: Daemon, { ids, signal, times }: Calls): Promise<void> {
  const every = async (ms: number, delayMs: number, work: () => Promise<unknown>) => {
    await sleep(delayMs);
    for (let next = performance.now(); !signal.aborted; next += ms) {
      await work();
      await sleep(Math.max(0, next + ms - performance.now()));
    }
  };
  const relist = async () => {
    const pods = timed(times, "ListPodSandbox", () => client.ListPodSandbox({}));
    await Promise.all([pods, timed(times, "ListContainers", () => client.ListContainers({}))]);
  };
  const stats = async () => {
    const pods = timed(times, "ListPodSandboxStats", () => client.ListPodSandboxStats({}));
    await Promise.all([
      pods,
      timed(times, "ListContainerStats", () => client.ListContainerStats({})),
    ]);
  };
  const probe = async (container_id: string) => {
    const request = { container_id, cmd: ["true"], timeout: toLong(10) };
    const { exit_code } = await client.ExecSync(request);
    if (exit_code !== 0) throw new Error(`a probe of ${container_id} ended with ${exit_code}`);
  };
  await Promise.all([
    every(1_000, 0, relist),
    every(5_000, 100, () => timed(times, "Status", () => client.Status({}))),
    every(10_000, 200, stats),
    every(10_000, 300, () => timed(times, "ImageFsInfo", () => client.ImageFsInfo({}))),
    every(30_000, 400, () => timed(times, "ListImages", () => client.ListImages({}))),
    ...ids.map((id, index) =>
      every(probeMs, (index * probeMs) / ids.length, () =>
        timed(times, "ExecSync", () => probe(id)),
      ),
    ),
  ]);
}
