// Tests the recovery of records and processes that disagree.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, globSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { runtime } from "../../src/proto/messages.js";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { recordFile } from "../records.ts";
import { busyboxImage } from "../image_maker.ts";

const { NamespaceMode, PodSandboxState } = runtime.v1;
const pause = "example.test/pause:1";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon({ config: { "pod-sandbox-image": pause } });
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const recordOf = (id: string) => recordFile(daemon.dir, "container", id);

test("a running container without a record is killed", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const pid = await daemon.pidOf(id);
  await daemon.stop();
  const settled = globSync(join(daemon.dir, "graph/containers", id, "container*.json"));
  for (const file of [recordOf(id), ...settled]) writeFileSync(file, "{");
  await daemon.start();
  await until("its process has ended", () => !existsSync(`/proc/${pid}`));
  expect((await daemon.client.ListContainers({})).containers).toEqual([]);
  await daemon.removePod(podId);
});

test("a container whose last change is unreadable continues from the previous record", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  await daemon.stop("SIGKILL");
  writeFileSync(recordOf(id), "");
  await daemon.start();
  const { CONTAINER_RUNNING } = runtime.v1.ContainerState;
  await until("it runs", async () => (await daemon.status(id)).state === CONTAINER_RUNNING);
  expect(daemon.log).toContain(`container ${id}: an older record is used`);
  await daemon.removePod(podId);
});

test("a container in creation is removed, and its name is free", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.create(podId, pod, "true", { metadata: { name: "half" } });
  const folder = join(daemon.dir, "graph/containers", id);
  await daemon.stop("SIGKILL");
  const record = JSON.parse(readFileSync(recordOf(id), "utf8")) as object;
  writeFileSync(recordOf(id), JSON.stringify({ ...record, phase: { phase: "creating" } }));
  rmSync(join(folder, "config.json"));
  await daemon.start();
  expect((await daemon.client.ListContainers({})).containers).toEqual([]);
  expect(existsSync(folder)).toBe(false);
  await daemon.create(podId, pod, "true", { metadata: { name: "half" } });
  await daemon.removePod(podId);
});

test("a pause container that ended while no daemon ran: its sandbox is NOTREADY", async () => {
  await daemon.loadImage(busyboxImage({ Entrypoint: ["sleep", "4243"], Cmd: [] }), pause);
  const namespace_options = { network: NamespaceMode.NODE, pid: NamespaceMode.POD };
  const config = daemon.hostPodConfig();
  const podId = await daemon.runPod({
    ...config,
    linux: { security_context: { namespace_options } },
  });
  const ask = { pod_sandbox_id: podId, verbose: true };
  const { info } = await daemon.client.PodSandboxStatus(ask);
  const { pid } = JSON.parse(info["info"]!) as { pid: number };
  await daemon.stop();
  process.kill(pid, "SIGKILL");
  await sleep(300);
  await daemon.start();
  const stateNow = async () => (await daemon.client.PodSandboxStatus(ask)).status!.state;
  const { SANDBOX_NOTREADY } = PodSandboxState;
  await until("it is not ready", async () => (await stateNow()) === SANDBOX_NOTREADY);
  await daemon.removePod(podId);
});
