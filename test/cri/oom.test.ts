// Tests that containers which lost a process to a memory limit report the OOM kill, and others do not.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { cgroupDriver, type Daemon, startDaemon } from "../harness.ts";
import { isV2, makeCgroups } from "../host.ts";

const top = "/sys/fs/cgroup";
const isSystemd = cgroupDriver === "systemd";
const eater = "dd if=/dev/zero of=/dev/null bs=200M count=1";
const limited = { linux: { resources: { memory_limit_in_bytes: toLong(20 << 20) } } };

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Exit code, reason and message of one whose own limit is 20 MiB. */
async function endOf(pod: PodSandboxConfig, podId: string, command: string) {
  const id = await daemon.run(podId, pod, command, limited);
  const { exitCode, reason, status } = await daemon.exited(id, 60_000);
  return { exitCode, reason, message: status.message };
}

describe("a container's own limit", () => {
  let pod: PodSandboxConfig;
  let podId: string;
  beforeAll(async () => {
    pod = daemon.hostPodConfig();
    podId = await daemon.runPod(pod);
  });
  afterAll(() => daemon.removePod(podId));
  const message =
    "the kernel killed a process of the container for memory: the container's memory limit was reached";

  test("is reported when the first process was killed, with 137", async () => {
    const end = await endOf(pod, podId, `exec ${eater}`);
    expect(end).toEqual({ exitCode: 137, reason: "OOMKilled", message });
  });

  test("is reported when another process was killed and the first one exited because of it, with its own code", async () => {
    const end = await endOf(pod, podId, `${eater}; exit 3`);
    expect(end).toEqual({ exitCode: 3, reason: "OOMKilled", message });
  });

  test("is not reported when the first process still succeeded", async () => {
    const end = await endOf(pod, podId, `${eater}; exit 0`);
    expect(end).toEqual({ exitCode: 0, reason: "Completed", message: "" });
  });

  test("is not reported for a SIGKILL, from inside or outside", async () => {
    const inside = await endOf(pod, podId, "sh -c 'kill -9 $$'; exit $?");
    expect(inside).toEqual({ exitCode: 137, reason: "Error", message: "" });
    const id = await daemon.run(podId, pod, ["sleep", "600"], limited);
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
    const outside = await daemon.exited(id);
    expect([outside.exitCode, outside.reason]).toEqual([137, "Error"]);
  });

  test("is reported for each of several containers killed at once", async () => {
    const ends = await Promise.all(
      Array.from({ length: 4 }, (_, index) =>
        endOf(pod, podId, index === 3 ? "sh -c 'kill -9 $$'; exit $?" : `exec ${eater}`),
      ),
    );
    expect(ends.map(({ reason }) => reason)).toEqual([...Array(3).fill("OOMKilled"), "Error"]);
  });
});

const limits = [
  { whose: "pod", above: 0, told: "the pod's memory limit was reached" },
  {
    whose: "node",
    above: 1,
    told: "the node, or what its pods may have together, was out of memory",
  },
];
test.each(limits)("the limit of the $whose is reported as such", async ({ above, told }) => {
  const name = `${daemon.token}x${above}`;
  const slice = `${name}.slice/${name}-pod.slice`;
  const parent = isSystemd ? `/${slice}` : `/${name}/pod`;
  const made = isSystemd ? [] : makeCgroups([`/${name}`, parent]);
  const pod = daemon.hostPodConfig();
  pod.linux = { ...pod.linux, cgroup_parent: parent };
  const podId = await daemon.runPod(pod);
  const wait = "until [ -e /go ]; do sleep 0.05; done";
  const id = await daemon.run(podId, pod, `${wait}; exec ${eater}`);
  const folder = join(
    top,
    isV2 ? "" : "memory",
    above === 0 ? parent : `/${name}${isSystemd ? ".slice" : ""}`,
  );
  writeFileSync(join(folder, isV2 ? "memory.max" : "memory.limit_in_bytes"), String(30 << 20));
  await daemon.exec(id, ["touch", "/go"]).catch(() => {}); // the container ends, perhaps before this exec
  const { reason, exitCode, status } = await daemon.exited(id, 60_000);
  expect([reason, exitCode]).toEqual(["OOMKilled", 137]);
  expect(status.message).toEndWith(`for memory: ${told}`);
  await daemon.removePod(podId);
  for (const path of made.toReversed()) rmdirSync(path);
});
