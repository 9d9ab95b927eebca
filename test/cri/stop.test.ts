// Tests that a stop ends every process of a container, including those that outlive its first process and
// those that SIGKILL does not end at once.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { cgroupMounts } from "../../src/node/cgroup.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { cgroupDriver, type Daemon, ociRuntime, startDaemon } from "../harness.ts";

const { ContainerState, NamespaceMode } = runtime.v1;
const { version, roots } = cgroupMounts();
/** Where processes are found and frozen. */
const hierarchy = version === 2 ? roots["unified"]! : roots["freezer"]!;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** In the host's pid namespace nothing ends with the first process. */
const hostPid = {
  linux: {
    security_context: {
      namespace_options: { network: NamespaceMode.NODE, pid: NamespaceMode.NODE },
    },
  },
};
const stop = (container_id: string, seconds: number) =>
  daemon.client.StopContainer({ container_id, timeout: toLong(seconds) });

/** Of this test's containers: each sleeps for a number of seconds of its own. */
function sleepers(...seconds: number[]): string[] {
  const { stdout } = Bun.spawnSync(["ps", "-eo", "args"]);
  const lines = stdout.toString().split("\n");
  return lines.filter((line) => seconds.some((one) => line === `sleep ${one}`));
}

describe("in a pid namespace that is not the container's own", () => {
  test.each([0, 60])("Stop with timeout %d ends all of it before it returns", async (seconds) => {
    const script = "trap 'exit 5' TERM; sleep 41337 & setsid sleep 41338 & wait";
    const id = await daemon.run(podId, pod, script, hostPid);
    await until("both sleep", () => sleepers(41337, 41338).length === 2);
    await stop(id, seconds);
    expect(sleepers(41337, 41338)).toEqual([]);
    expect((await daemon.status(id)).exit_code).toBe(seconds === 0 ? 137 : 5);
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("when the first process exits by itself, the others are killed too", async () => {
    const id = await daemon.run(podId, pod, "setsid sleep 41339 & exit 3", hostPid);
    expect((await daemon.exited(id)).exitCode).toBe(3);
    await until("the other has gone", () => sleepers(41339).length === 0);
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

const containerFolder = (id: string) => join(hierarchy, daemon.cgroupParent, podId, id);

test.skipIf(cgroupDriver === "systemd")(
  "a container that has exited: what lives in its cgroup ends",
  async () => {
    const { id } = await daemon.output(podId, pod, "true");
    // What the runtime deletes last; its cgroup goes hierarchy by hierarchy.
    const state = join(daemon.dir, "state/runtime", ociRuntime, id);
    await until("the runtime has deleted it", () => !existsSync(state));
    expect(existsSync(containerFolder(id))).toBe(false);
    mkdirSync(containerFolder(id));
    const left = Bun.spawn(["sleep", "41340"]);
    writeFileSync(join(containerFolder(id), "cgroup.procs"), String(left.pid));
    await stop(id, 10);
    expect(await left.exited).toBe(137);
    rmdirSync(containerFolder(id));
    await daemon.client.RemoveContainer({ container_id: id });
  },
);

// A frozen process of cgroup v1 takes no signal: as one that waits for a disk.
test.skipIf(version === 2)(
  "what SIGKILL does not end: an error that says so, and Stop goes on later",
  async () => {
    const id = await daemon.run(podId, pod, ["sleep", "41341"]);
    await daemon.exec(id, "true"); // by now the runtime's init has become the program
    const freezer = join(hierarchy, daemon.cgroupParent, podId, "freezer.state");
    writeFileSync(freezer, "FROZEN");
    try {
      const limit = { "runtime-timeout": "3s" };
      const error = await daemon.configured(limit, () => failure(stop(id, 0)));
      expect(error.code).toBe("DEADLINE_EXCEEDED");
      expect(error.message).toMatch(/SIGKILL has not ended process \d+ \(sleep, state [DS]\)/);
      expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
      const remove = () => failure(daemon.client.RemoveContainer({ container_id: id }));
      const removal = await daemon.configured(limit, remove);
      expect(removal.code).toBe("DEADLINE_EXCEEDED");
    } finally {
      writeFileSync(freezer, "THAWED");
    }
    await stop(id, 0);
    expect(await daemon.exited(id)).toMatchObject({ exitCode: 137, reason: "Error" });
    expect(readFileSync(freezer, "utf8")).toBe("THAWED\n");
    await daemon.client.RemoveContainer({ container_id: id });
  },
);
