// Tests swap in stats. It turns swap on, so it runs only in the guest.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../../src/base/int64.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const isGuest = existsSync("/etc/systemd/system/vm-sshd.service");
if (!isGuest) console.error("skipped, only the guest's swap is ours: swap in stats");
const bytes = 512 << 20;
const limit = 32 << 20;

let daemon: Daemon;

function run(command: string): void {
  const { status, stderr } = spawnSync("sh", ["-ec", command], { encoding: "utf8" });
  if (status !== 0) throw new Error(`${command}: ${stderr}`);
}

describe.skipIf(!isGuest)("with swap", () => {
  beforeAll(async () => {
    run(
      `modprobe zram; echo ${bytes} >/sys/block/zram0/disksize; mkswap /dev/zram0; swapon /dev/zram0`,
    );
    daemon = await startDaemon();
  });
  afterAll(async () => {
    await daemon?.[Symbol.asyncDispose]();
    run("swapoff /dev/zram0");
  });

  test("a container's stats show its swap usage, and the swap left to its limit", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const resources = {
      memory_limit_in_bytes: toLong(limit),
      memory_swap_limit_in_bytes: toLong(limit + (96 << 20)),
    };
    const script = "head -c 60000000 /dev/zero | tr '\\0' a >/dev/shm/held; sleep 600";
    const id = await daemon.run(podId, pod, script, { linux: { resources } });
    const swap = async () => {
      const { stats } = await daemon.client.ContainerStats({ container_id: id });
      return stats!.swap!;
    };
    const end = Date.now() + 60_000;
    const used = (text: string) => Number(/^SwapTotal.*?(\d+)/m.exec(text)?.[1] ?? 0);
    expect(used(readFileSync("/proc/meminfo", "utf8"))).toBeGreaterThan(0);
    let found = await swap();
    while (Number(found.swap_usage_bytes!.value) < 20 << 20) {
      if (Date.now() > end) throw new Error(`it never used swap: ${JSON.stringify(found)}`);
      await sleep(1_000);
      found = await swap();
    }
    const [usage, left] = [found.swap_usage_bytes!.value, found.swap_available_bytes!.value];
    expect(Number(usage) + Number(left)).toBe(96 << 20);
    expect(Number(found.timestamp) / 1e6).toBeWithin(end - 70_000, Date.now() + 1);
    const { stats } = await daemon.client.PodSandboxStats({ pod_sandbox_id: podId });
    const [own] = stats!.linux!.containers!;
    expect(Number(own!.swap!.swap_usage_bytes!.value)).toBeGreaterThan(20 << 20);
    await daemon.removePod(podId);
  });
});
