// Tests how ended containers are deleted: the runtime is asked once, without --force, for which runc waits 0.1 s;
// and again after a delete that failed or was cut off.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { runtime as cri } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
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
  const faults = `while [ -e ${fault("hold")} ]; do sleep 0.1; done; [ -e ${fault("fail")} ] && exit 1`;
  const script = `#!/bin/sh
echo "$@" >> ${calls}
case "$*" in *" delete "*) ${faults} ;; esac
exec ${ociRuntime} "$@"
`;
  writeFileSync(runtime, script, { mode: 0o755 });
  mkdirSync(daemon.cniDir);
  daemon.writeConfig({ runtimes: { recorded: { path: runtime } } });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** A file while which exists the runtime's deletes wait, or fail. */
function fault(what: "hold" | "fail"): string {
  return join(daemon.dir, what);
}

/** A pod in the node's pid namespace: a process may outlive its container's init there. */
async function runNodePod(): Promise<[PodSandboxConfig, string]> {
  const namespace_options = { network: NamespaceMode.NODE, pid: NamespaceMode.NODE };
  const linux = { security_context: { namespace_options } };
  const pod = { ...daemon.podConfig({ linux }), hostname: "" };
  return [pod, await daemon.runPod(pod, "recorded")];
}

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
  const [pod, podId] = await runNodePod();
  const { id, text } = await daemon.output(podId, pod, "sleep 600 & echo $!");
  await until("it has been deleted", () => !isLeft(id));
  expect(deletesOf(id)).toEqual([expect.not.stringContaining("--force")]);
  expect(text).toMatch(/^\d+\n$/);
  await until("the process that was left has ended", () => !existsSync(`/proc/${text.trim()}`));
  await daemon.removePod(podId);
});

test.each(["hold", "fail"] as const)(
  "a container whose delete a killed monitor has left (%s) is deleted by the next one",
  async (what) => {
    const [pod, podId] = await runNodePod();
    writeFileSync(fault(what), "");
    const { id, text } = await daemon.output(podId, pod, "sleep 600 & echo $!");
    await until("it is being deleted", () => deletesOf(id).length > 0);
    for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
    rmSync(fault(what));
    await until("what was left has ended", () => !existsSync(`/proc/${text.trim()}`));
    await until("the runtime has forgotten it", () => !isLeft(id));
    expect((await daemon.status(id)).exit_code).toBe(0);
    await daemon.removePod(podId);
  },
);

test("a delete that failed is repeated by the same monitor", async () => {
  const [pod, podId] = await runNodePod();
  const monitors = daemon.monitors();
  writeFileSync(fault("fail"), "");
  const { id, text } = await daemon.output(podId, pod, "sleep 600 & echo $!");
  await until("it has failed", () => deletesOf(id).length > 1); // with --force too
  rmSync(fault("fail"));
  await until("what was left has ended", () => !existsSync(`/proc/${text.trim()}`));
  expect(daemon.monitors()).toEqual(monitors);
  await daemon.removePod(podId);
});
