// Tests two daemons on one node that share a cgroup parent or a pidfile: each removes only its own.
import { expect, test } from "bun:test";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { until } from "../expect.ts";
import { cgroupDriver, type Daemon, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";

/** Where the pod's own limit stands. */
function limitFile(daemon: Daemon, podId: string): string {
  const [top, file] = isV2 ? ["", "memory.max"] : ["memory", "memory.limit_in_bytes"];
  return join("/sys/fs/cgroup", top, daemon.cgroupParent, podId, file);
}

// With systemd a pod without a process has no slice yet: test/cri/driver.test.ts has pods that run.
test.skipIf(cgroupDriver === "systemd")(
  "a second daemon under one cgroup parent leaves pods without a process, and their limits",
  async () => {
    await using first = await startDaemon({ image: false });
    const pod = first.hostPodConfig();
    pod.linux = { ...pod.linux, resources: { memory_limit_in_bytes: toLong(64 << 20) } };
    const podId = await first.runPod(pod);
    const limit = limitFile(first, podId);
    expect(readFileSync(limit, "utf8")).toBe(`${64 << 20}\n`);
    const config = { "cgroup-parent": first.cgroupParent, pidfile: join(first.dir, "isulad.pid") };
    await using second = await startDaemon({ image: false, config });
    // What it has lost the record of is its own all the same.
    const lost = await second.runPod(second.hostPodConfig());
    await second.stop("SIGKILL");
    for (const folder of ["graph/sandboxes", "state/records"]) {
      rmSync(join(second.dir, folder), { recursive: true });
    }
    await second.start();
    const gone = join(second.dir, "state/sandboxes", lost);
    await until("the lost pod is swept", () => !existsSync(gone));
    await until("so is its cgroup", () => !existsSync(limitFile(first, lost)));
    expect(readFileSync(limit, "utf8")).toBe(`${64 << 20}\n`);
    await first.removePod(podId);
    expect(existsSync(limit)).toBe(false);
  },
  120_000,
);

test("the end of a daemon leaves a pidfile that another one has written since", async () => {
  await using first = await startDaemon({ image: false });
  const pidfile = join(first.dir, "isulad.pid");
  await using second = await startDaemon({ image: false, config: { pidfile } });
  expect(readFileSync(pidfile, "utf8")).toBe(String(second.pid));
  await first.stop();
  expect(readFileSync(pidfile, "utf8")).toBe(String(second.pid));
  await second.stop();
  expect(existsSync(pidfile)).toBe(false);
});
