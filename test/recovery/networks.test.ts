// Records that do not tell, or are not there, of pods that are attached to a network: what their plugins
// and the kernel hold goes all the same.
import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Daemon, startDaemon } from "../harness.ts";
import { recordFile } from "../records.ts";

let daemon: Daemon;

beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());
/** A test that failed may have left pods, and no daemon. */
beforeEach(async () => {
  if (daemon.pid < 0) await daemon.start();
  await daemon.removeAllPods();
});

function leases(): string[] {
  return readdirSync(join(daemon.dir, "ipam", daemon.token)).filter((name) => /^\d/.test(name));
}

test.each<[string, unknown]>([
  ["an object without anything", [{}]],
  ["without a list", [{ confList: null, ifName: "eth0" }]],
  ["empty", []],
  ["null", null],
])("a record whose CNI part is %s: Stop takes what is cached, and Remove works", async (_, cni) => {
  const before = daemon.snapshot();
  const podId = await daemon.runPod(daemon.podConfig());
  expect(leases()).toHaveLength(1);
  await daemon.stop("SIGKILL");
  const file = recordFile(daemon.dir, "sandbox", podId);
  const record = JSON.parse(readFileSync(file, "utf8")) as object;
  writeFileSync(file, JSON.stringify({ ...record, cni }));
  await daemon.start();
  await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId, verbose: true });
  await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
  expect(leases()).toEqual([]);
  await daemon.client.RemovePodSandbox({ pod_sandbox_id: podId });
  const leaks = await daemon.leaksSince(before);
  expect(leaks.filter((leak) => !leak.startsWith("descriptor"))).toEqual([]); // another process's
});
