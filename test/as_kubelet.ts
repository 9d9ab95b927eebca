// Makes the calls of a kubelet with generic PLEG that probes each of its containers.
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../src/base/int64.ts";
import type { Daemon } from "./harness.ts";

export const probeMs = 2_000;

type Calls = {
  /** The containers that are probed. */
  ids: string[];
  signal: AbortSignal;
  /** Called after each call with its duration. */
  onCall: (name: string, ms: number) => void;
};

/** Its promise resolves when the calls have ended. @throws Error of a probe that fails. */
export async function asKubelet({ client }: Daemon, { ids, signal, onCall }: Calls): Promise<void> {
  const timed = async (name: string, call: () => Promise<unknown>) => {
    const begin = performance.now();
    await call();
    onCall(name, performance.now() - begin);
  };
  const every = async (ms: number, delayMs: number, work: () => Promise<unknown>) => {
    await sleep(delayMs);
    for (let next = performance.now(); !signal.aborted; next += ms) {
      await work();
      await sleep(Math.max(0, next + ms - performance.now()));
    }
  };
  const relist = async () => {
    const pods = timed("ListPodSandbox", () => client.ListPodSandbox({}));
    await Promise.all([pods, timed("ListContainers", () => client.ListContainers({}))]);
  };
  const stats = async () => {
    const pods = timed("ListPodSandboxStats", () => client.ListPodSandboxStats({}));
    await Promise.all([pods, timed("ListContainerStats", () => client.ListContainerStats({}))]);
  };
  const probe = async (container_id: string) => {
    const request = { container_id, cmd: ["true"], timeout: toLong(10) };
    const { exit_code } = await client.ExecSync(request);
    if (exit_code !== 0) throw new Error(`a probe of ${container_id} ended with ${exit_code}`);
  };
  await Promise.all([
    every(1_000, 0, relist),
    every(5_000, 100, () => timed("Status", () => client.Status({}))),
    every(10_000, 200, stats),
    every(10_000, 300, () => timed("ImageFsInfo", () => client.ImageFsInfo({}))),
    every(30_000, 400, () => timed("ListImages", () => client.ListImages({}))),
    ...ids.map((id, index) =>
      every(probeMs, (index * probeMs) / ids.length, () => timed("ExecSync", () => probe(id))),
    ),
  ]);
}
