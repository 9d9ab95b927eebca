// Tests a log disk that stops accepting writes: containers that write to it wait, and no others.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";
import { silentDisk } from "../silent_disk.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-frozen-"));
const disk = join(folder, "disk");

/** An ext4 of its own, which fsfreeze(8) can stall: not every machine has a loop device. */
function makeDisk(): boolean {
  const image = join(folder, "image");
  mkdirSync(disk);
  const made = spawnSync("sh", [
    "-c",
    `truncate -s 64M ${image} && mkfs.ext4 -q ${image} && mount -o loop ${image} ${disk}`,
  ]);
  return made.status === 0;
}

const haveDisk = makeDisk();
if (!haveDisk) console.error("skipped, there is no loop device: a log disk that stalls");
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
  }, 120_000);
});

describe("a log disk that does not answer at all (needs root)", () => {
  const lost = join(folder, "lost");
  let daemon: Daemon;
  let pods: { config: PodSandboxConfig; id: string }[];

  beforeAll(async () => {
    daemon = await startDaemon({ network: false });
    const configs = [daemon.hostPodConfig(), daemon.hostPodConfig({ log_directory: lost })];
    pods = await Promise.all(
      configs.map(async (config) => ({ config, id: await daemon.runPod(config) })),
    );
  });
  afterAll(() => daemon[Symbol.asyncDispose]());

  test("fails the start on it, and holds up nobody, nor a monitor that starts", async () => {
    const [here, there] = pods;
    const writes = await daemon.run(there!.id, there!.config, "sleep 2; echo out; exit 3");
    using _ = silentDisk(lost);
    for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
    await until("the daemon knows", () => daemon.log.includes("the monitor has ended"));
    expect((await daemon.output(here!.id, here!.config, "echo here")).text).toBe("here\n");
    const container_id = await daemon.create(there!.id, there!.config, ["true"]);
    const refused = daemon.client.StartContainer({ container_id }).catch(String);
    expect((await daemon.output(here!.id, here!.config, "echo again")).text).toBe("again\n");
    expect((await daemon.exited(writes, 30_000)).exitCode).toBe(3);
    expect(await refused).toMatch(/cannot write the log of .*opening the log on its disk/);
    await daemon.client.RemoveContainer({ container_id });
  });

  test("leaves a pod that can be removed", async () => {
    using _ = silentDisk(lost);
    await Promise.all(pods.map(({ id }) => daemon.removePod(id)));
  });
});
