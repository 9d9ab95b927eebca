// Tests that a node whose pods are only probed and listed writes nothing to its disk, which may be an SD card.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdirSync, readFileSync, lstatSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
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

/** Bytes that a process has caused to be written to disks, proc_pid_io(5); tmpfs does not count. */
function bytesWritten(pid: number): number {
  return Number(/^write_bytes: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, "utf8"))![1]);
}

/** Every file under graph with the time of its last change of any kind. */
function changeTimes(): Map<string, bigint> {
  const graph = join(daemon.dir, "graph");
  const paths = readdirSync(graph, { recursive: true, encoding: "utf8" });
  const own = ["", ...paths.filter((path) => !path.includes("/rootfs"))];
  return new Map(own.map((path) => [path, lstatSync(join(graph, path), { bigint: true }).ctimeNs]));
}

test("probes, lists and statistics write nothing under graph, and nothing to disk", async () => {
  const { client } = daemon;
  await sleep(1_500); // what creating the pods still writes in the background
  const pids = daemon.scope.pids();
  const before = { files: changeTimes(), bytes: pids.map(bytesWritten) };
  for (let round = 0; round < rounds; round++) {
    for (const id of ids) expect((await daemon.exec(id, ["true"])).exitCode).toBe(0);
    await Promise.all([client.ListPodSandbox({}), client.ListContainers({}), client.Status({})]);
    await Promise.all([client.ListContainerStats({}), client.ListPodSandboxStats({})]);
    await Promise.all([client.ImageFsInfo({}), client.ListImages({})]);
    await sleep(200);
  }
  expect({ files: changeTimes(), bytes: pids.map(bytesWritten) }).toEqual(before);

  const pod = daemon.hostPodConfig();
  await daemon.runPod(pod);
  expect(changeTimes()).not.toEqual(before.files); // the measure sees a record
});
