// Tests the priority of the event loops: ahead of the programs that they start, which have the usual one.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { getPriority } from "node:os";
import { startDaemon } from "../harness.ts";

const mayRaise = spawnSync("nice", ["-n", "-1", "true"]).status === 0 && getPriority() === 0;

/** The niceness of its session, where the kernel groups processes by session: "/autogroup-7 nice -10". */
function sessionOf(pid: number): string {
  return readFileSync(`/proc/${pid}/autogroup`, "utf8")
    .replace(/^.* nice /, "")
    .trim();
}

test.skipIf(!mayRaise)("daemon and monitor run before what they start", async () => {
  await using daemon = await startDaemon({ network: false, detached: true });
  const pod = daemon.hostPodConfig();
  const id = await daemon.run(await daemon.runPod(pod), pod, ["sleep", "600"]);
  const pids = [daemon.pid, ...daemon.monitors()];
  expect(pids).toHaveLength(2);
  expect(pids.map((pid) => getPriority(pid))).toEqual([-10, -10]);
  expect(getPriority(await daemon.pidOf(id))).toBe(0);
  // proc(5), /proc/PID/stat: the nineteenth field
  expect((await daemon.exec(id, "cut -d' ' -f19 /proc/self/stat")).stdout).toBe("0\n");
  if (!existsSync("/proc/self/autogroup")) return;
  expect(pids.map(sessionOf)).toEqual(["-10", "-10"]);
  expect(sessionOf(await daemon.pidOf(id))).toBe("0");
});
