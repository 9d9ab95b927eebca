// Tests an OCI runtime that is uninstalled while its containers exist: exited containers can be removed, and
// the files that the runtime has of them are removed when it is back.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { busybox, Daemon, ociRuntime } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

let daemon: Daemon;
let program: string;

beforeAll(async () => {
  daemon = new Daemon({ network: false });
  program = join(daemon.dir, "runtime");
  install();
  daemon.writeConfig({ runtimes: { ours: { path: program } } });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
});
afterAll(async () => {
  if (daemon === undefined) return;
  if (!existsSync(program)) install();
  await daemon[Symbol.asyncDispose]();
});

function install(): void {
  symlinkSync(Bun.which(ociRuntime)!, program);
}

test("RemoveContainer and RemovePodSandbox take away what has ended, the runtime's part later", async () => {
  const before = daemon.snapshot();
  const { NODE, POD } = runtime.v1.NamespaceMode;
  const security_context = { namespace_options: { network: NODE, pid: POD } };
  const pod = { ...daemon.podConfig({ linux: { security_context } }), hostname: "" };
  const podId = await daemon.runPod(pod, "ours");
  const live = await daemon.run(podId, pod, ["sleep", "600"]);
  const ended = await daemon.run(podId, pod, ["sleep", "600"]);
  rmSync(program);
  await daemon.client.StopContainer({ container_id: ended });
  const root = join(daemon.dir, "state/runtime/ours");
  expect(readdirSync(root)).toContain(ended);
  await daemon.client.RemoveContainer({ container_id: ended });
  const { code } = await failure(daemon.client.ContainerStatus({ container_id: ended }));
  expect(code).toBe("NOT_FOUND");
  expect((await daemon.status(live)).state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
  await daemon.removePod(podId);
  expect((await daemon.client.ListContainers({})).containers).toEqual([]);
  expect(daemon.log).toContain(`cannot run ${program}`);
  install();
  await daemon.restart();
  await until("the runtime has forgotten all", () => readdirSync(root).length === 0);
  // Another daemon has other descriptors.
  const leaks = (await daemon.leaksSince(before)).filter((leak) => !leak.startsWith("descriptor"));
  expect(leaks).toEqual([]);
});
