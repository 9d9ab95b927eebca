// A monitor that is killed, while containers write and end.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { type Daemon, logText, startDaemon } from "../harness.ts";

let daemon: Daemon;
beforeAll(async () => (daemon = await startDaemon({ network: false })));
afterAll(() => daemon[Symbol.asyncDispose]());

/** Kills the monitor and waits until another one answers for it. */
async function killMonitor(): Promise<void> {
  const [pid] = daemon.monitors();
  process.kill(pid!, "SIGKILL");
  const end = Date.now() + 10_000;
  while (daemon.monitors().length !== 1 || daemon.monitors()[0] === pid) {
    if (Date.now() > end) throw new Error("no other monitor");
    await sleep(10);
  }
}

describe("a monitor that is killed", () => {
  test("loses no line of those who write", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const count = 200_000;
    const ids = [];
    for (let writer = 0; writer < 2; writer++) {
      ids.push(await daemon.run(podId, pod, `seq ${count}; printf half; sleep 1; echo; echo end`));
    }
    for (let kill = 0; kill < 8; kill++) {
      await sleep(100);
      await killMonitor();
    }
    for (const id of ids) {
      const { exitCode, status } = await daemon.exited(id);
      expect(exitCode).toBe(0);
      const lines = logText(readFileSync(status.log_path!, "utf8")).split("\n");
      const seen = new Set(lines);
      const missing = Array.from({ length: count }, (_, index) => `${index + 1}`).filter(
        (line) => !seen.has(line),
      );
      expect(missing).toEqual([]);
      expect(lines.slice(-3)).toEqual(["half", "end", ""]);
    }
    await daemon.removePod(podId);
  }, 60_000);
});
