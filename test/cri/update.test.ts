// UpdateContainerResources on running and created containers: applied as a whole or not at all.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { toLong } from "../../src/base/int64.ts";
import { cgroupMounts } from "../../src/node/cgroup.ts";
import type { LinuxContainerResources, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, ociRuntime, startDaemon } from "../harness.ts";

const isV2 = cgroupMounts().version === 2;
const mib = (count: number) => toLong(count << 20);

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ flags: ["--allow-failpoints"] });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const update = (container_id: string, linux: LinuxContainerResources) =>
  daemon.client.UpdateContainerResources({ container_id, linux });

const files = isV2
  ? ["memory.max", "cpu.weight", "cpu.max"]
  : [
      "memory/memory.limit_in_bytes",
      "cpu/cpu.shares",
      "cpu/cpu.cfs_quota_us",
      "cpu/cpu.cfs_period_us",
    ];

/** What the kernel has, as the container sees it. */
async function kernel(id: string) {
  // Not of the cgroup's file: under systemd the controller comes with its first limit.
  const allowed = "grep Cpus_allowed_list /proc/self/status";
  const cat = files.map((file) => `echo $(cat /sys/fs/cgroup/${file})`).join("; ");
  const { stdout } = await daemon.exec(id, `${allowed}; ${cat}`);
  const [cpus = "", memory = "", shares = "", ...quota] = stdout.trimEnd().split("\n");
  return { memory, shares, cpus: cpus.split(/\s+/)[1], quota: quota.join(" ") };
}

async function reported(id: string): Promise<Record<string, string>> {
  const { resources } = await daemon.status(id);
  return JSON.parse(JSON.stringify(resources?.linux ?? {})) as Record<string, string>;
}

const bundle = (id: string) => {
  const path = join(daemon.dir, "graph/containers", id, "config.json");
  const spec = JSON.parse(readFileSync(path, "utf8")) as {
    linux: { resources: { memory?: { limit: number } } };
  };
  return spec.linux.resources.memory?.limit;
};

/** The daemon with these failpoints, each of which strikes once. */
async function arm(failpoints: string): Promise<void> {
  await daemon.stop();
  process.env["ISULAD_FAILPOINTS"] = failpoints;
  await daemon.start();
  process.env["ISULAD_FAILPOINTS"] = "";
}

const start = (linux: LinuxContainerResources = {}) =>
  daemon.run(podId, pod, ["sleep", "600"], { linux: { resources: linux } });

describe("of a container that runs", () => {
  test("changes the given limits only, at once and permanently", async () => {
    const id = await start({ memory_limit_in_bytes: mib(64), cpu_shares: toLong(512) });
    const before = await kernel(id);
    expect(before.memory).toBe(String(64 << 20));
    await update(id, { memory_limit_in_bytes: mib(128) });
    expect(await kernel(id)).toEqual({ ...before, memory: String(128 << 20) });
    await update(id, { memory_limit_in_bytes: mib(32), cpu_quota: toLong(50_000) });
    const lower = await kernel(id);
    expect(lower).toEqual({ ...before, memory: String(32 << 20), quota: "50000 100000" });
    const wanted = {
      memory_limit_in_bytes: String(32 << 20),
      cpu_shares: "512",
      cpu_quota: "50000",
    };
    expect(await reported(id)).toMatchObject(wanted);
    expect(bundle(id)).toBe(32 << 20);
    await daemon.restart("SIGKILL");
    expect(await reported(id)).toMatchObject(wanted);
    expect(await kernel(id)).toEqual(lower);
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("removes limits with -1", async () => {
    const id = await start({ memory_limit_in_bytes: mib(64), cpu_quota: toLong(50_000) });
    await update(id, { memory_limit_in_bytes: toLong(-1), cpu_quota: toLong(-1) });
    const { memory, quota } = await kernel(id);
    expect(memory === "max" || BigInt(memory) > 2n ** 60n).toBe(true);
    expect(quota).toMatch(/^(-1|max) /);
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("an error of the kernel or the runtime is returned, and changes nothing", async () => {
    const id = await start({ memory_limit_in_bytes: mib(64) });
    const before = await kernel(id);
    const error = await failure(
      update(id, { memory_limit_in_bytes: mib(96), cpuset_cpus: "4000" }),
    );
    expect(error.message).toContain("update");
    expect(await kernel(id)).toEqual(before);
    expect(await reported(id)).toMatchObject({ memory_limit_in_bytes: String(64 << 20) });
    expect(bundle(id)).toBe(64 << 20);
    const both = { memory_limit_in_bytes: mib(96), memory_swap_limit_in_bytes: mib(48) };
    expect((await failure(update(id, both))).code).toBe("INVALID_ARGUMENT");
    const pages = { hugepage_limits: [{ page_size: "2MB", limit: mib(2) }] };
    expect((await failure(update(id, pages))).code).toBe("FAILED_PRECONDITION");
    expect(await kernel(id)).toEqual(before);
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

describe("of one that does not run", () => {
  test("created: the container starts with the new limits", async () => {
    const id = await daemon.create(podId, pod, ["sleep", "600"]);
    await update(id, { memory_limit_in_bytes: mib(48), cpuset_cpus: "0" });
    expect(await reported(id)).toMatchObject({ cpuset_cpus: "0" });
    await daemon.client.StartContainer({ container_id: id });
    expect(await kernel(id)).toMatchObject({ memory: String(48 << 20), cpus: "0" });
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("other limits from the handler's base spec stay", async () => {
    const base = join(daemon.dir, "base.json");
    const resources = { pids: { limit: 77 } };
    writeFileSync(base, JSON.stringify({ ociVersion: "1.0.2", linux: { resources } }));
    const path = Bun.which(ociRuntime)!;
    daemon.writeConfig({ runtimes: { based: { path, "base-runtime-spec": base } } });
    await daemon.restart();
    const own = daemon.hostPodConfig();
    const ownId = await daemon.runPod(own, "based");
    const id = await daemon.create(ownId, own, ["sleep", "600"]);
    await update(id, { memory_limit_in_bytes: mib(48) });
    await daemon.client.StartContainer({ container_id: id });
    await update(id, { memory_limit_in_bytes: mib(64) });
    const pids = `cat /sys/fs/cgroup/${isV2 ? "" : "pids/"}pids.max`;
    expect((await daemon.exec(id, pids)).stdout).toBe("77\n");
    expect(await kernel(id)).toMatchObject({ memory: String(64 << 20) });
    await daemon.removePod(ownId);
  });

  test("exited is FAILED_PRECONDITION, unknown NOT_FOUND, nothing given OK", async () => {
    const { id } = await daemon.output(podId, pod, "true");
    const shares = { cpu_shares: toLong(512) };
    expect((await failure(update(id, shares))).code).toBe("FAILED_PRECONDITION");
    expect((await failure(update("no-such", shares))).code).toBe("NOT_FOUND");
    const running = await start();
    await daemon.client.UpdateContainerResources({ container_id: running });
    await update(running, {});
    await daemon.client.RemoveContainer({ container_id: running });
  });
});

describe("interrupted after the kernel applied it", () => {
  const given = {
    memory_limit_in_bytes: mib(96),
    cpu_shares: toLong(300),
    cpu_quota: toLong(30_000),
    cpuset_cpus: "0",
  };

  test("by an error, at each step: rolled back, including limits that were unset", async () => {
    const failpoints = ["after:runtime-update", "before:update-bundle", "before:update-done"];
    const id = await start();
    const before = await kernel(id);
    await arm(failpoints.map((failpoint) => `${failpoint}=error`).join(","));
    for (const failpoint of failpoints) {
      expect((await failure(update(id, given))).message).toContain(failpoint);
      expect(await kernel(id)).toEqual(before);
      expect(bundle(id)).toBeUndefined();
      expect((await reported(id))["cpu_shares"]).toBeUndefined();
    }
    await update(id, given); // each failpoint strikes once
    expect(await kernel(id)).toMatchObject({ memory: String(96 << 20), cpus: "0" });
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("by the daemon's exit: the next daemon rolls it back", async () => {
    const id = await start({ memory_limit_in_bytes: mib(64) });
    const before = await kernel(id);
    await arm("after:runtime-update=kill");
    await failure(update(id, given));
    await daemon.stop();
    await daemon.start();
    const end = Date.now() + 20_000;
    while ((await kernel(id)).cpus !== before.cpus && Date.now() < end) await Bun.sleep(50);
    expect(await kernel(id)).toEqual(before);
    expect(await reported(id)).toMatchObject({ memory_limit_in_bytes: String(64 << 20) });
    await daemon.client.RemoveContainer({ container_id: id });
  });
});
