// Tests a monitor that another build replaces in place. The other build is a copy of the executable with
// another modification time.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { copyFileSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { runtime } from "../../src/proto/messages.js";
import { pace, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";
import { upgradeTo } from "./upgrade_to.ts";

const { ContainerState } = runtime.v1;
let daemon: Daemon;
beforeAll(async () => (daemon = await startDaemon({ network: false })));
afterAll(() => daemon[Symbol.asyncDispose]());

function upgrades(): number {
  return daemon.log.split("upgrading the monitor").length - 1;
}

/** Waits for any other monitor's end: while the old one becomes the new one, the daemon may start one, which gives way. */
const serves = (pid: number) =>
  until(
    () => `monitor ${pid} is the only one of ${daemon.monitors().join(", ")}`,
    () => daemon.monitors().join() === String(pid),
  );

const exeOf = (pid: number) => readlinkSync(`/proc/${pid}/exe`);
const fdsOf = (pid: number) => readdirSync(`/proc/${pid}/fd`).length;

describe("an upgrade of the monitor", () => {
  test("keeps process, children, terminals and every line", async () => {
    const other = join(daemon.dir, "other-build");
    copyFileSync(executable, other);
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const count = 300_000;
    const untilTold = "until [ -e /end ]; do usleep 50000; done";
    const writer = await daemon.run(podId, pod, `seq ${count}; ${untilTold}; exit 77`);
    const terminal = await daemon.run(
      podId,
      pod,
      `for i in 1 2 3 4 5 6 7 8; do echo $i; sleep ${0.5 * pace}; done; ${untilTold}`,
      {
        tty: true,
      },
    );
    const reader = await daemon.run(podId, pod, ["cat"], { stdin: true });
    const [pid] = daemon.monitors();
    const fds = fdsOf(pid!);
    await upgradeTo(daemon, [other]);
    // The daemon meets a strange build and makes it its own again.
    const end = Date.now() + 60_000 * pace;
    while (upgrades() === 0 || exeOf(pid!) !== executable) {
      if (Date.now() > end) throw new Error(`still ${exeOf(pid!)}`);
      await sleep(20);
    }
    while (Math.abs(fdsOf(pid!) - fds) > 3) {
      if (Date.now() > end) throw new Error(`${fdsOf(pid!)} descriptors, ${fds} before`);
      await sleep(100);
    }
    await serves(pid!);
    expect((await daemon.status(reader)).state).toBe(ContainerState.CONTAINER_RUNNING);
    for (const id of [writer, terminal]) await daemon.exec(id, "touch /end");
    const exit = await daemon.exited(writer);
    expect(exit.exitCode).toBe(77);
    const lines = logText(readFileSync(exit.status.log_path!, "utf8")).split("\n");
    expect(lines.length - 1).toBe(count);
    expect(lines[count - 1]).toBe(String(count));
    const last = await daemon.exited(terminal);
    expect(last.exitCode).toBe(0);
    const text = logText(readFileSync(last.status.log_path!, "utf8"));
    expect(text).toBe("1\n2\n3\n4\n5\n6\n7\n8\n");
    await daemon.removePod(podId);
  });

  test("by a daemon that has only just come ends nobody's standard input", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const reader = await daemon.run(podId, pod, ["cat"], { stdin: true });
    await daemon.stop(); // now the monitor alone has the end that is written to
    const other = join(daemon.dir, "next-build");
    copyFileSync(executable, other);
    const [pid] = daemon.monitors();
    await upgradeTo(daemon, [other]);
    expect(exeOf(pid!)).toBe(other);
    await daemon.start(); // which makes it its own build again
    expect(exeOf(pid!)).toBe(executable);
    const { state, exit_code } = await daemon.status(reader);
    expect({ state, exit_code }).toEqual({ state: ContainerState.CONTAINER_RUNNING, exit_code: 0 });
    await daemon.removePod(podId);
  });

  test("does not happen when the other build fails its check", async () => {
    const [pid] = daemon.monitors();
    const broken = join(daemon.dir, "broken-build");
    writeFileSync(broken, "#!/bin/sh\necho 'no such state' >&2\nexit 3\n", { mode: 0o755 });
    await upgradeTo(daemon, [broken]);
    const log = join(daemon.dir, "state/monitor.log");
    await until("the check has failed", () => readFileSync(log, "utf8").includes("no such state"));
    await serves(pid!);
    expect(exeOf(pid!)).toBe(executable);
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    expect((await daemon.output(podId, pod, "echo still there")).text).toBe("still there\n");
    await daemon.removePod(podId);
  });

  test("waits for no exec whose caller has gone", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "100"]);
    const other = join(daemon.dir, "third-build");
    copyFileSync(executable, other);
    daemon.exec(id, "sleep 101", 0).catch(() => {});
    await until("it runs", async () =>
      (await daemon.exec(id, "ps -o args")).stdout.includes("sleep 101"),
    );
    await daemon.stop("SIGKILL");
    const [pid] = daemon.monitors();
    await upgradeTo(daemon, [other]);
    expect(exeOf(pid!)).toBe(other); // it gives up after ten seconds of waiting for a call
    await daemon.start();
    expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
    await daemon.removePod(podId);
  });

  test("that is given up because a call runs too long leaves a monitor that sees exits", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const other = join(daemon.dir, "fourth-build");
    copyFileSync(executable, other);
    // For longer than the ten seconds that an upgrade waits.
    const long = daemon.exec(id, "echo runs > /busy; until [ -e /over ]; do sleep 0.1; done", 600);
    await until("it runs", async () => (await daemon.exec(id, "cat /busy")).stdout === "runs\n");
    const [pid] = daemon.monitors();
    const upgraded = upgradeTo(daemon, [other]);
    await sleep(3000); // by now calls wait
    const call = new AbortController();
    const asked = { container_id: id, cmd: ["sleep", "51600"] };
    const cancelled = daemon.client.ExecSync(asked, { signal: call.signal }).catch(() => {});
    await sleep(500);
    call.abort();
    await Promise.all([cancelled, upgraded]);
    expect(exeOf(pid!)).toBe(executable);
    await daemon.exec(id, "touch /over");
    expect((await long).exitCode).toBe(0);
    await sleep(1000);
    expect((await daemon.exec(id, "ps -o args")).stdout).not.toContain("51600");
    const exit = await daemon.exited(await daemon.run(podId, pod, "exit 5"));
    expect(exit.exitCode).toBe(5);
    await daemon.removePod(podId);
  });

  test("is not stopped by SIGTERM while containers run", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    await daemon.run(podId, pod, ["sleep", "100"]);
    const [pid] = daemon.monitors();
    process.kill(pid!, "SIGTERM");
    await sleep(300);
    await serves(pid!);
    await daemon.removePod(podId);
    process.kill(pid!, "SIGTERM");
    await until("it ends without containers", () => !daemon.monitors().includes(pid!));
  });
});
