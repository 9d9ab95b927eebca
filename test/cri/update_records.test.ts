// Tests that UpdateContainerResources changes the limits of containers that do not run, and that interrupted
// updates are rolled back.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { lstatSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { LinuxContainerResources, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { cgroupDriver, type Daemon, executable, ociRuntime, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";
import { Limits, mib } from "./limits.ts";

let daemon: Daemon;
let limits: Limits;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ flags: ["--allow-failpoints"] });
  limits = new Limits(daemon);
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Restarts the daemon with failpoints, each of which strikes once. */
async function arm(failpoints: string): Promise<void> {
  await daemon.restart("SIGTERM", failpoints);
}

const start = (linux: LinuxContainerResources = {}) =>
  daemon.run(podId, pod, ["sleep", "600"], { linux: { resources: linux } });

describe("of a container that does not run", () => {
  test("created: the container starts with the new limits", async () => {
    const id = await daemon.create(podId, pod, ["sleep", "600"]);
    await limits.update(id, { memory_limit_in_bytes: mib(48), cpuset_cpus: "0" });
    expect(await limits.reported(id)).toMatchObject({ cpuset_cpus: "0" });
    await daemon.client.StartContainer({ container_id: id });
    expect(await limits.kernel(id)).toMatchObject({ memory: String(48 << 20), cpus: "0" });
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
    await limits.update(id, { memory_limit_in_bytes: mib(48) });
    await daemon.client.StartContainer({ container_id: id });
    await limits.update(id, { memory_limit_in_bytes: mib(64) });
    const pids = `cat /sys/fs/cgroup/${isV2 ? "" : "pids/"}pids.max`;
    expect((await daemon.exec(id, pids)).stdout).toBe("77\n");
    expect(await limits.kernel(id)).toMatchObject({ memory: String(64 << 20) });
    await daemon.removePod(ownId);
  });

  test("exited is FAILED_PRECONDITION, unknown NOT_FOUND, nothing given OK", async () => {
    const { id } = await daemon.output(podId, pod, "true");
    const shares = { cpu_shares: toLong(512) };
    expect((await failure(limits.update(id, shares))).code).toBe("FAILED_PRECONDITION");
    expect((await failure(limits.update("no-such", shares))).code).toBe("NOT_FOUND");
    const running = await start();
    await daemon.client.UpdateContainerResources({ container_id: running });
    await limits.update(running, {});
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
    const before = await limits.kernel(id);
    await arm(failpoints.map((failpoint) => `${failpoint}=error`).join(","));
    for (const failpoint of failpoints) {
      expect((await failure(limits.update(id, given))).message).toContain(failpoint);
      expect(await limits.kernel(id)).toEqual(before);
      expect(limits.bundle(id)).toBeUndefined();
      expect((await limits.reported(id))["cpu_shares"]).toBeUndefined();
    }
    await limits.update(id, given); // each failpoint strikes once
    expect(await limits.kernel(id)).toMatchObject({ memory: String(96 << 20), cpus: "0" });
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("and not rolled back: refuses updates until the limits from before it are back", async () => {
    const [used, broken] = [join(daemon.dir, "used"), join(daemon.dir, "broken")];
    const path = join(daemon.dir, "breaking-runtime");
    // From the second update on, the runtime fails.
    const script = `case " $* " in *" update "*)
      if [ -e ${used} ]; then [ -e ${broken} ] && exit 1; fi; : >${used} ;;
    esac`;
    writeFileSync(path, `#!/bin/sh\n${script}\nexec ${ociRuntime} "$@"\n`, { mode: 0o755 });
    writeFileSync(broken, "");
    daemon.writeConfig({ runtimes: { breaking: { path } } });
    await arm("before:update-done=error");
    const own = daemon.hostPodConfig();
    const ownId = await daemon.runPod(own, "breaking");
    const resources = { memory_limit_in_bytes: mib(64), cpu_shares: toLong(512) };
    const id = await daemon.run(ownId, own, ["sleep", "600"], { linux: { resources } });
    const before = await limits.kernel(id);
    expect((await failure(limits.update(id, given))).message).toContain("update-done");
    expect(limits.bundle(id)).toBe(96 << 20);
    for (let attempt = 0; attempt < 2; attempt++) {
      const refused = await failure(limits.update(id, { memory_limit_in_bytes: mib(128) }));
      expect(refused.code).toBe("FAILED_PRECONDITION");
      expect(refused.message).toContain("try again later");
    }
    rmSync(broken);
    await limits.update(id, { cpu_quota: toLong(50_000) });
    expect(await limits.kernel(id)).toEqual({ ...before, quota: "50000 100000" });
    expect(await limits.reported(id)).toMatchObject({ memory_limit_in_bytes: String(64 << 20) });
    await daemon.removePod(ownId);
    daemon.writeConfig();
  });

  test("by the daemon's exit: the next daemon rolls it back", async () => {
    const id = await start({ memory_limit_in_bytes: mib(64) });
    const before = await limits.kernel(id);
    await arm("after:runtime-update=kill");
    await failure(limits.update(id, given));
    await daemon.stop();
    await daemon.start();
    await until("it is rolled back", async () => Bun.deepEquals(await limits.kernel(id), before));
    expect(await limits.reported(id)).toMatchObject({ memory_limit_in_bytes: String(64 << 20) });
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

describe("that changes nothing", () => {
  const own = { memory_limit_in_bytes: mib(64), cpu_shares: toLong(512), cpuset_cpus: "0" };

  /** Bundle and record with the times of their last change; the record gets to the disk later. */
  function written(id: string): [string, bigint][] {
    const folders = [join(daemon.dir, "graph/containers", id), join(daemon.dir, "state/records")];
    const paths = folders.flatMap((folder) =>
      readdirSync(folder).map((name) => join(folder, name)),
    );
    const own = paths.filter((path) => path.includes(id) && !path.endsWith(".settled.json"));
    return own.map((path) => [path, lstatSync(path, { bigint: true }).ctimeNs]);
  }

  test.each<[string, LinuxContainerResources]>([
    ["one limit again", { cpuset_cpus: "0" }],
    ["all limits again", own],
    [
      "the limits of huge pages that a kubelet always sends",
      { ...own, hugepage_limits: [{ page_size: "2MB", limit: toLong(0) }] },
    ],
    ["nothing but unspecified values", { cpu_shares: toLong(0), unified: {} }],
  ])("writes nothing under graph and no line of INFO: %s", async (_, given) => {
    const id = await start(own);
    await limits.update(id, { cpu_quota: toLong(50_000) });
    const [before, log] = [written(id), daemon.log.length];
    await limits.update(id, given);
    expect(written(id)).toEqual(before);
    expect(daemon.log.slice(log)).not.toContain("container updated");
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("sets a limit again that another program has changed", async () => {
    const id = await start(own);
    const before = await limits.kernel(id);
    const file = isV2 ? "cpu.weight" : "cpu/cpu.shares";
    const cgroup = readFileSync(`/proc/${await daemon.pidOf(id)}/cgroup`, "utf8");
    const path = new RegExp(isV2 ? "^0::(.+)$" : ":cpu:(.+)$", "m").exec(cgroup)![1]!;
    writeFileSync(join("/sys/fs/cgroup", isV2 ? path : `cpu${path}`, basename(file)), "100");
    expect(await limits.kernel(id)).not.toEqual(before);
    await limits.update(id, { cpuset_cpus: "0" });
    expect(await limits.kernel(id)).toEqual(before);
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

// The daemon runs in a mount namespace in which cgroup v1's memory hierarchy is not mounted.
test.skipIf(isV2 || cgroupDriver === "systemd")(
  "without a memory controller: a refused update says why and blocks no later one",
  async () => {
    const folder = mkdtempSync(join(tmpdir(), "isulad-without-memory-"));
    const wrapper = join(folder, basename(executable));
    const hide = `umount /sys/fs/cgroup/memory && exec ${executable} "$@"`;
    writeFileSync(wrapper, `#!/bin/sh\nexec unshare -m sh -c '${hide}' sh "$@"\n`, { mode: 0o755 });
    await using daemon = await startDaemon({ executable: wrapper, network: false });
    expect(daemon.log).toMatch(/WARN.*cgroup controllers are absent.*memory/i);
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const update = (linux: LinuxContainerResources) =>
      daemon.client.UpdateContainerResources({ container_id: id, linux });
    const why = "this node has no memory controller";
    const refused = await failure(update({ memory_limit_in_bytes: mib(64) }));
    expect(refused.message).toContain(why);
    await update({ cpu_shares: toLong(300) });
    const both = { memory_limit_in_bytes: mib(64), cpu_quota: toLong(30_000) };
    expect((await failure(update(both))).message).toContain(why);
    await update({ cpu_quota: toLong(50_000), cpuset_cpus: "0" });
    const files = ["cpu.shares", "cpu.cfs_quota_us"].map((name) => `/sys/fs/cgroup/cpu/${name}`);
    expect((await daemon.exec(id, ["cat", ...files])).stdout).toBe("300\n50000\n");
    const resources = { memory_limit_in_bytes: mib(64) };
    const started = daemon.run(podId, pod, ["sleep", "600"], { linux: { resources } });
    expect((await failure(started)).message).toContain(why);
    await daemon.removePod(podId);
    rmSync(folder, { recursive: true });
  },
);
