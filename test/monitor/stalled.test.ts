// A log disk that stops taking writes: who writes to it waits, and nobody else.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { type Daemon, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-frozen-"));
const disk = join(folder, "disk");

/** An ext4 of its own, which fsfreeze(8) can stall: not every machine has a loop device. */
function makeDisk(): boolean {
  if (process.getuid!() !== 0) return false;
  const image = join(folder, "image");
  mkdirSync(disk);
  const made = spawnSync("sh", [
    "-c",
    `truncate -s 64M ${image} && mkfs.ext4 -q ${image} && mount -o loop ${image} ${disk}`,
  ]);
  return made.status === 0;
}

const haveDisk = makeDisk();
afterAll(() => {
  if (haveDisk) spawnSync("umount", [disk]);
  rmSync(folder, { recursive: true, force: true });
});
const freeze = () => spawnSync("fsfreeze", ["-f", disk]);
const thaw = () => spawnSync("fsfreeze", ["-u", disk]);

describe.skipIf(!haveDisk)("a log disk that stalls", () => {
  let daemon: Daemon;
  beforeAll(async () => (daemon = await startDaemon({ network: false })));
  afterAll(async () => {
    thaw();
    await daemon[Symbol.asyncDispose]();
  });

  test("holds up only those whose logs are on it", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const slow = daemon.hostPodConfig({ log_directory: disk });
    const slowId = await daemon.runPod(slow);
    const count = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; sleep 0.01; done";
    const stalled = await daemon.run(slowId, slow, count);
    const ends = await daemon.run(slowId, slow, "sleep 1; echo last; exit 3");
    await sleep(300);
    freeze();
    try {
      await sleep(500);
      const begin = performance.now();
      const { text } = await daemon.output(podId, pod, "echo here");
      expect(text).toBe("here\n");
      const other = await daemon.run(podId, pod, "while :; do echo x; sleep 0.1; done");
      expect((await daemon.exec(other, "echo exec")).stdout).toBe("exec\n");
      expect((await daemon.exec(stalled, "echo too")).stdout).toBe("too\n");
      await daemon.client.StopContainer({ container_id: other });
      expect(performance.now() - begin).toBeLessThan(8000);
      // An exit is told although its log is late.
      expect((await daemon.exited(ends, 30_000)).exitCode).toBe(3);
    } finally {
      thaw();
    }
    const { exitCode, status } = await daemon.exited(stalled, 30_000);
    expect(exitCode).toBe(0);
    await sleep(500);
    const lines = logText(readFileSync(status.log_path!, "utf8")).trim().split("\n");
    expect(lines).toEqual(Array.from({ length: 300 }, (_, index) => `${index + 1}`));
    const late = (await daemon.status(ends)).log_path;
    expect(logText(readFileSync(late, "utf8"))).toBe("last\n");
    await daemon.removePod(podId);
    await daemon.removePod(slowId);
  }, 90_000);
});
