// Tests that a node whose pods are only probed and listed writes nothing to its disk, which may be an SD card.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { bytesBetween, changedFiles, type DiskWrites, diskWrites } from "../disk_writes.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const rounds = 10;
let daemon: Daemon;
const ids: string[] = [];

beforeAll(async () => {
  // The log of the daemon is a file on the disk.
  daemon = await startDaemon({ network: false, config: { "log-level": "WARN" } });
  for (let count = 0; count < 2; count++) {
    const pod = daemon.hostPodConfig();
    ids.push(await daemon.run(await daemon.runPod(pod), pod, ["sleep", "600"]));
  }
});
afterAll(() => daemon[Symbol.asyncDispose]());

/** Returns the measures once two of them, two seconds apart, are equal. */
async function settled(): Promise<DiskWrites> {
  let last = diskWrites(daemon);
  await until("nothing more is written", async () => {
    const before = last;
    await sleep(2_000);
    last = diskWrites(daemon);
    return changedFiles(before, last).length === 0 && bytesBetween(before, last) === 0;
  });
  return last;
}

test("probes, lists and statistics write nothing under graph, and nothing to disk", async () => {
  const { client } = daemon;
  const before = await settled(); // creating the pods still writes in the background
  for (let round = 0; round < rounds; round++) {
    for (const id of ids) expect((await daemon.exec(id, ["true"])).exitCode).toBe(0);
    await Promise.all([client.ListPodSandbox({}), client.ListContainers({}), client.Status({})]);
    await Promise.all([client.ListContainerStats({}), client.ListPodSandboxStats({})]);
    await Promise.all([client.ImageFsInfo({}), client.ListImages({})]);
    await sleep(200);
  }
  const after = diskWrites(daemon);
  expect([changedFiles(before, after), bytesBetween(before, after)]).toEqual([[], 0]);

  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const seen = diskWrites(daemon); // the measures see a record
  expect(changedFiles(before, seen)).toContain(`graph/sandboxes/${podId}`);
  expect(bytesBetween(before, seen)).toBeGreaterThan(0);
});
