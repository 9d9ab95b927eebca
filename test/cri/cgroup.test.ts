// Tests the cgroups of pods and containers on the host, with the cgroup driver of this run.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync, rmdirSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { failure } from "../expect.ts";
import { cgroupDriver, type Daemon, ociRuntime, startDaemon } from "../harness.ts";
import { isV2, makeCgroups } from "../host.ts";

const isSystemd = cgroupDriver === "systemd";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon({ config: { "cgroup-parent": "" } });
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** The container's cgroup as the host sees it, in the pids hierarchy or the only one. */
async function cgroupOf(containerId: string): Promise<string> {
  const file = `/proc/${await daemon.pidOf(containerId)}/cgroup`;
  const lines = readFileSync(file, "utf8").split("\n");
  const line = lines.find((one) => (isV2 ? one.startsWith("0::") : one.includes(":pids:")))!;
  return line.slice(line.indexOf(":/") + 1);
}

describe(`with the ${cgroupDriver} driver`, () => {
  test("without a parent a pod has a cgroup of its own, removed with the pod", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const cgroup = await cgroupOf(id);
    // crun puts the processes into a cgroup of its own below the scope.
    if (isSystemd) expect(cgroup).toMatch(/\.scope(\/container)?$/);
    else expect(cgroup).toBe(`/isulad/${podId}/${id}`);
    expect(cgroup).toContain(id);
    await daemon.removePod(podId);
    const top = join("/sys/fs/cgroup", isV2 ? "" : "pids");
    expect(existsSync(join(top, cgroup))).toBe(false);
    if (!isSystemd) expect(existsSync(join(top, "isulad", podId))).toBe(false);
  });

  test("the kubelet's parent contains the container, and only the kubelet removes it", async () => {
    const name = daemon.token;
    const parent = isSystemd ? `/${name}.slice/${name}-burst.slice` : `/${name}/burst/pod1`;
    const made = isSystemd ? [] : makeCgroups([`/${name}`, `/${name}/burst`, parent]);
    const pod = { ...daemon.hostPodConfig() };
    pod.linux = { ...pod.linux, cgroup_parent: parent };
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    expect(await cgroupOf(id)).toStartWith(`${parent}/`);
    await daemon.removePod(podId);
    for (const path of made) expect(existsSync(path)).toBe(true);
    for (const path of made.toReversed()) rmdirSync(path);
  });

  test("pods may share a parent: removing one leaves the other's cgroup", async () => {
    const parent = isSystemd ? `${daemon.token}-shared.slice` : `/${daemon.token}/shared`;
    const pods: { podId: string; id: string }[] = [];
    for (let count = 0; count < 2; count++) {
      const pod = { ...daemon.hostPodConfig() };
      pod.linux = { ...pod.linux, cgroup_parent: parent };
      const podId = await daemon.runPod(pod);
      pods.push({ podId, id: await daemon.run(podId, pod, ["sleep", "600"]) });
    }
    const [maker, other] = pods;
    await daemon.removePod(maker!.podId);
    expect((await daemon.exec(other!.id, ["echo", "alive"])).stdout).toBe("alive\n");
    await daemon.removePod(other!.podId);
  });

  test("limits of the container are set in its cgroup", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const resources = {
      memory_limit_in_bytes: toLong(64 << 20),
      cpu_quota: toLong(50_000),
      cpu_period: toLong(100_000),
    };
    const id = await daemon.run(podId, pod, ["sleep", "600"], { linux: { resources } });
    const cgroup = await cgroupOf(id);
    const value = (controller: string, file: string) =>
      readFileSync(join("/sys/fs/cgroup", isV2 ? "" : controller, cgroup, file), "utf8").trim();
    expect(value("memory", isV2 ? "memory.max" : "memory.limit_in_bytes")).toBe(String(64 << 20));
    if (isV2) expect(value("cpu", "cpu.max")).toBe("50000 100000");
    else expect(value("cpu", "cpu.cfs_quota_us")).toBe("50000");
    await daemon.removePod(podId);
  });

  test("an OOM kill of the first process is always reported, even if the cgroup is removed at once", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const eater = ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"];
    const resources = { memory_limit_in_bytes: toLong(20 << 20) };
    const reasons: string[] = [];
    for (let round = 0; round < 5; round++) {
      const id = await daemon.run(podId, pod, eater, { linux: { resources } });
      reasons.push((await daemon.exited(id)).reason);
    }
    expect(reasons).toEqual(Array(5).fill("OOMKilled"));
    await daemon.removePod(podId);
  });

  test("the container sees its own cgroup only", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const { text } = await daemon.output(podId, pod, "cat /proc/self/cgroup; ls /sys/fs/cgroup");
    if (isV2) expect(text).toStartWith("0::/\n");
    expect(text).toContain(isV2 ? "cgroup.procs" : "memory");
    await daemon.removePod(podId);
  });

  // crun 1.8 ignores mount options.
  test.skipIf(!isV2 || ociRuntime !== "runc")(
    "a privileged container does not change how the node's cgroup2 is mounted",
    async () => {
      const options = () =>
        / \/sys\/fs\/cgroup .* - cgroup2 \S+ (.*)/.exec(
          readFileSync("/proc/self/mountinfo", "utf8"),
        )![1];
      const before = options();
      const pod = daemon.hostPodConfig();
      const { namespace_options } = pod.linux!.security_context!;
      pod.linux = { security_context: { namespace_options, privileged: true } };
      const podId = await daemon.runPod(pod);
      const linux = { security_context: { privileged: true } };
      const script = "test -w /sys/fs/cgroup/cgroup.procs";
      expect((await daemon.output(podId, pod, script, { linux })).exitCode).toBe(0);
      expect(options()).toBe(before);
      await daemon.removePod(podId);
    },
  );

  test.skipIf(!isSystemd)("a parent that is no slice is refused", async () => {
    const pod = daemon.hostPodConfig();
    pod.linux = { ...pod.linux, cgroup_parent: "/plain/path" };
    const error = await failure(daemon.runPod(pod));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain(".slice");
  });
});
