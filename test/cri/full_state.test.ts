// Tests that containers cannot fill `state`, which all pods share, and what calls answer when it is full.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { readFileSync, statfsSync } from "node:fs";
import { join } from "node:path";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const state = () => join(daemon.dir, "state");

function freeBytes(folder: string): number {
  const { bavail, bsize } = statfsSync(folder);
  return bavail * bsize;
}

function resizeState(size: string): void {
  execFileSync("mount", ["-o", `remount,size=${size}`, state()]);
}

test("what a container writes to /etc/hostname, hosts and resolv.conf is bounded, and leaves `state` alone", async () => {
  const before = daemon.snapshot();
  const kinds: PodSandboxConfig[] = [daemon.podConfig(), daemon.hostPodConfig()];
  for (const pod of kinds) {
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const free = freeBytes(state());
    const script = `cat /etc/hostname
      for f in hostname hosts resolv.conf; do dd if=/dev/zero of=/etc/$f bs=64k count=64 2>&1 | grep -c space; done
      cat /etc/hostname /etc/hosts /etc/resolv.conf | wc -c`;
    const [name = "", ...said] = (await daemon.exec(id, script)).stdout.trim().split("\n");
    expect(name).toBe(pod.hostname || readFileSync("/etc/hostname", "utf8").trim());
    expect(said.slice(0, 3)).toEqual(["1", "1", "1"]);
    expect(Number(said[3])).toBeLessThan(1 << 20);
    expect(free - freeBytes(state())).toBeLessThan(256 << 10);
    // The pod goes on, with the daemon of an upgrade, too.
    await daemon.restart();
    const again = await daemon.output(podId, pod, "echo own > /dev/shm/x && cat /dev/shm/x");
    expect(again.text).toBe("own\n");
    await daemon.removePod(podId);
  }
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("calls that need room in a full `state` say so, and work again when there is room", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const { blocks, bfree, bsize } = statfsSync(state());
  resizeState(String((blocks - bfree) * bsize));
  try {
    const calls = [
      () => daemon.runPod(daemon.podConfig()),
      () => daemon.exec(id, "echo here"),
      () => daemon.run(podId, pod, ["sleep", "600"]),
    ];
    for (const call of calls) {
      expect(await failure(call())).toMatchObject({
        code: "RESOURCE_EXHAUSTED",
        message: expect.stringContaining(`no space left on the disk of state (${state()})`),
      });
    }
  } finally {
    resizeState("50%");
  }
  expect((await daemon.exec(id, "echo here")).stdout).toBe("here\n");
  await daemon.removePod(await daemon.runPod(daemon.podConfig()));
  await daemon.removePod(podId);
});
