// Tests a daemon that has run out of descriptors: calls fail and say why, and work again when it has more.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

let daemon: Daemon;
beforeAll(async () => (daemon = await startDaemon()));
afterAll(() => daemon[Symbol.asyncDispose]());

/** The hard limit stays: without CAP_SYS_RESOURCE a lower one keeps execs from having their container's. */
function limitDescriptors(count: number, pid = daemon.pid): void {
  const done = spawnSync("prlimit", ["--pid", String(pid), `--nofile=${count}:`]);
  expect(done.stderr.toString()).toBe("");
}

test("a pod that cannot be made is RESOURCE_EXHAUSTED and leaves nothing; what runs goes on", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const before = daemon.snapshot();
  const logged = daemon.log.length;
  limitDescriptors(readdirSync(`/proc/${daemon.pid}/fd`).length + 1);
  const error = await failure(daemon.runPod(daemon.podConfig()));
  expect(error.code).toBe("RESOURCE_EXHAUSTED");
  expect(error.message).toMatch(/too many open files|EMFILE/);
  limitDescriptors(4096);
  // The sweep retries a rollback that failed, too, for lack of descriptors after a minute.
  const isRetried = daemon.log.slice(logged).includes("rolling back a failed start failed");
  expect(await daemon.leaksSince(before, isRetried ? 90_000 : undefined)).toEqual([]);
  expect((await daemon.exec(id, "echo fine")).stdout).toBe("fine\n");
  await daemon.removePod(await daemon.runPod(daemon.podConfig()));
  await daemon.removePod(podId);
}, 180_000);

test("a monitor without a free descriptor goes on, and so do its containers", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const monitors = daemon.monitors();
  const [monitor = -1] = monitors;
  limitDescriptors(readdirSync(`/proc/${monitor}/fd`).length, monitor);
  await Bun.sleep(3_000); // it looks each second
  limitDescriptors(4096, monitor);
  expect(daemon.monitors()).toEqual(monitors);
  expect((await daemon.exec(id, "echo fine")).stdout).toBe("fine\n");
  await daemon.removePod(podId);
});
