// Tests how ended containers are deleted: the runtime is asked once, without --force, for which runc waits 0.1 s.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { runtime as cri } from "../../src/proto/messages.js";
import { until } from "../expect.ts";
import { busybox, Daemon, ociRuntime } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

const { NamespaceMode } = cri.v1;
let daemon: Daemon;
let calls: string;

beforeAll(async () => {
  daemon = new Daemon({});
  calls = join(daemon.dir, "calls");
  const runtime = join(daemon.dir, "runtime");
  writeFileSync(runtime, `#!/bin/sh\necho "$@" >> ${calls}\nexec ${ociRuntime} "$@"\n`, {
    mode: 0o755,
  });
  mkdirSync(daemon.cniDir);
  daemon.writeConfig({ runtimes: { recorded: { path: runtime } } });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

function deletesOf(id: string): string[] {
  const lines = readFileSync(calls, "utf8").split("\n");
  return lines.filter((line) => line.includes(" delete ") && line.endsWith(id));
}

function isLeft(id: string): boolean {
  return existsSync(join(daemon.dir, "state/runtime/recorded", id));
}

test("a container that has ended is deleted once, without --force", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod, "recorded");
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  expect(isLeft(id)).toBe(true);
  await daemon.removePod(podId);
  expect(deletesOf(id)).toEqual([expect.not.stringContaining("--force")]);
  expect(isLeft(id)).toBe(false);
});

test("so is one whose processes outlive it in the node's pid namespace", async () => {
  const namespace_options = { network: NamespaceMode.NODE, pid: NamespaceMode.NODE };
  const linux = { security_context: { namespace_options } };
  const pod = { ...daemon.podConfig({ linux }), hostname: "" };
  const podId = await daemon.runPod(pod, "recorded");
  const { id, text } = await daemon.output(podId, pod, "sleep 600 & echo $!");
  await until("it has been deleted", () => !isLeft(id));
  expect(deletesOf(id)).toEqual([expect.not.stringContaining("--force")]);
  expect(text).toMatch(/^\d+\n$/);
  await until("the process that was left has ended", () => !existsSync(`/proc/${text.trim()}`));
  await daemon.removePod(podId);
});
