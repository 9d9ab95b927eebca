// Tests that UpdateContainerResources changes a running container's limits as a whole or not at all.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import type { LinuxContainerResources, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";
import { Limits, mib } from "./limits.ts";

let daemon: Daemon;
let limits: Limits;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ config: { "tolerate-missing-hugetlb-controller": false } });
  limits = new Limits(daemon);
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const start = (linux: LinuxContainerResources = {}) =>
  daemon.run(podId, pod, ["sleep", "600"], { linux: { resources: linux } });

test("changes the given limits only, at once and permanently", async () => {
  const id = await start({ memory_limit_in_bytes: mib(64), cpu_shares: toLong(512) });
  const before = await limits.kernel(id);
  expect(before.memory).toBe(String(64 << 20));
  await limits.update(id, { memory_limit_in_bytes: mib(128) });
  expect(await limits.kernel(id)).toEqual({ ...before, memory: String(128 << 20) });
  await limits.update(id, { memory_limit_in_bytes: mib(32), cpu_quota: toLong(50_000) });
  const lower = await limits.kernel(id);
  expect(lower).toEqual({ ...before, memory: String(32 << 20), quota: "50000 100000" });
  const wanted = {
    memory_limit_in_bytes: String(32 << 20),
    cpu_shares: "512",
    cpu_quota: "50000",
  };
  expect(await limits.reported(id)).toMatchObject(wanted);
  expect(limits.bundle(id)).toBe(32 << 20);
  await daemon.restart("SIGKILL");
  expect(await limits.reported(id)).toMatchObject(wanted);
  expect(await limits.kernel(id)).toEqual(lower);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("removes limits with -1", async () => {
  const id = await start({ memory_limit_in_bytes: mib(64), cpu_quota: toLong(50_000) });
  await limits.update(id, { memory_limit_in_bytes: toLong(-1), cpu_quota: toLong(-1) });
  const { memory, quota } = await limits.kernel(id);
  expect(memory === "max" || BigInt(memory) > 2n ** 60n).toBe(true);
  expect(quota).toMatch(/^(-1|max) /);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("an error of the kernel or the runtime is returned, and changes nothing", async () => {
  const id = await start({ memory_limit_in_bytes: mib(64) });
  const before = await limits.kernel(id);
  const error = await failure(
    limits.update(id, { memory_limit_in_bytes: mib(96), cpuset_cpus: "4000" }),
  );
  expect(error.message).toContain("update");
  expect(await limits.kernel(id)).toEqual(before);
  expect(await limits.reported(id)).toMatchObject({ memory_limit_in_bytes: String(64 << 20) });
  expect(limits.bundle(id)).toBe(64 << 20);
  const both = { memory_limit_in_bytes: mib(96), memory_swap_limit_in_bytes: mib(48) };
  expect((await failure(limits.update(id, both))).code).toBe("INVALID_ARGUMENT");
  const pages = { hugepage_limits: [{ page_size: "2MB", limit: mib(2) }] };
  expect((await failure(limits.update(id, pages))).code).toBe("FAILED_PRECONDITION");
  expect(await limits.kernel(id)).toEqual(before);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("a memory limit below what the container holds is refused, and kills nothing", async () => {
  const memory = (count: number) => ({
    memory_limit_in_bytes: mib(count),
    memory_swap_limit_in_bytes: mib(count),
  });
  const id = await start(memory(64));
  const shm = `/dev/shm/held-${id}`;
  const { exitCode } = await daemon.exec(id, `dd if=/dev/zero of=${shm} bs=1M count=24`, 120);
  expect(exitCode).toBe(0);
  const before = await limits.kernel(id);
  const { code, message } = await failure(
    limits.update(id, { ...memory(20), cpu_shares: toLong(256) }),
  );
  expect(message).toContain(`updating container ${id}: `);
  if (isV2)
    expect([code, message]).toEqual(["FAILED_PRECONDITION", expect.stringContaining("OOM-killed")]);
  expect(await limits.kernel(id)).toEqual(before);
  expect(await limits.reported(id)).toMatchObject({ memory_limit_in_bytes: String(64 << 20) });
  expect((await daemon.exec(id, `rm ${shm}`)).exitCode).toBe(0);
  await limits.update(id, memory(20));
  await daemon.client.RemoveContainer({ container_id: id });
});
