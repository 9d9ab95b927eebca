// Tests a monitor that is killed while containers write and end.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { unpin } from "../../src/monitor/init_process.ts";
import { runtime } from "../../src/proto/messages.js";
import { isZombie, startTime } from "../../src/sys/process.ts";
import { keepsExits, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";

const { ContainerState } = runtime.v1;
let daemon: Daemon;
beforeAll(async () => (daemon = await startDaemon({ network: false })));
afterAll(() => daemon[Symbol.asyncDispose]());

/** Kills the monitor, when there is one, and waits until another one is there. */
async function killMonitor(): Promise<void> {
  const pid = await monitor();
  process.kill(pid, "SIGKILL");
  await monitor(pid);
}

async function monitor(other = 0): Promise<number> {
  const end = Date.now() + 60_000;
  for (;;) {
    const pids = daemon.monitors();
    if (pids.length === 1 && pids[0] !== other) return pids[0]!;
    if (Date.now() > end) throw new Error(`no monitor other than ${other}`);
    await sleep(10);
  }
}

/** What seq(1) prints, by line. */
function numbers(count: number): string[] {
  return Array.from({ length: count }, (_, index) => `${index + 1}`);
}

/** True for a process that has the master's side of a terminal open. */
function hasTerminal(pid: number): boolean {
  const folder = `/proc/${pid}/fd`;
  return readdirSync(folder).some((fd) => readLink(join(folder, fd)).includes("ptmx"));
}

/** "" for a descriptor that was just closed. */
function readLink(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return "";
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
      expect(numbers(count).filter((line) => !seen.has(line))).toEqual([]);
      // A line may come twice, at the place of a kill.
      expect([...seen].slice(-3)).toEqual(["half", "end", ""]);
    }
    await daemon.removePod(podId);
  });

  test("leaves the exit codes of those who end meanwhile to the next one", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const codes = [0, 1, 77, 137, 255];
    const ids = [];
    for (const code of codes) {
      ids.push(await daemon.run(podId, pod, `echo begin; sleep 1.5; echo last; exit ${code}`));
    }
    // Some end while there is none.
    for (let kill = 0; kill < 12; kill++) {
      await killMonitor();
      await sleep(50);
    }
    for (const [index, id] of ids.entries()) {
      const { exitCode, status } = await daemon.exited(id);
      expect(exitCode).toBe(codes[index]!);
      const lines = logText(readFileSync(status.log_path!, "utf8")).split("\n");
      expect([...new Set(lines)]).toEqual(["begin", "last", ""]); // one may come twice, as above
    }
    await daemon.removePod(podId);
  });

  test("before it has recorded an exit leaves its code, also to a kernel that keeps none", async () => {
    await using own = await startDaemon({
      network: false,
      flags: ["--allow-failpoints"],
      env: { ISULAD_FAILPOINTS: "before:exit-record=delay:3000" },
    });
    const pod = own.hostPodConfig();
    const podId = await own.runPod(pod);
    const id = await own.run(podId, pod, "exit 79");
    const folder = join(own.dir, "state/monitor");
    const record = readFileSync(join(folder, "containers", `${id}.json`), "utf8");
    const { pid } = JSON.parse(record) as { pid: number };
    await until("the container has ended", () => startTime(pid) === undefined || isZombie(pid));
    await sleep(500); // less than the failpoint's delay
    unpin(join(folder, "pids", id));
    for (const monitorPid of own.monitors()) process.kill(monitorPid, "SIGKILL");
    const { exitCode, reason } = await own.exited(id);
    expect({ exitCode, reason }).toEqual({ exitCode: 79, reason: "Error" });
    await until("nobody keeps the zombie", () => startTime(pid) === undefined);
    await own.removePod(podId);
  });

  test("with its daemon leaves them too, where the kernel keeps them", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const script = "trap 'exit 78' USR1; echo ready; while :; do sleep 0.1 & wait $!; done";
    const id = await daemon.run(podId, pod, script);
    await daemon.logged(id, "ready");
    const [pid, init] = [await monitor(), await daemon.pidOf(id)];
    process.kill(daemon.pid, "SIGSTOP"); // or it starts another one
    process.kill(pid, "SIGKILL");
    await daemon.stop("SIGKILL");
    process.kill(init, "SIGUSR1");
    await until("it has ended", () => startTime(init) === undefined || isZombie(init));
    await daemon.start();
    const { exitCode, reason } = await daemon.exited(id);
    if (keepsExits) expect({ exitCode, reason }).toEqual({ exitCode: 78, reason: "Error" });
    else expect({ exitCode, reason }).toEqual({ exitCode: 255, reason: "Unknown" });
    await daemon.removePod(podId);
  });

  test("does not end what reads its standard input", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["cat"], { stdin: true });
    await killMonitor();
    await sleep(300);
    expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
    await daemon.removePod(podId);
  });

  test("leaves the terminals to the next one", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const wait = "until [ -e /go ]; do echo waits; sleep 0.1; done";
    const id = await daemon.run(podId, pod, `${wait}; seq 1000; tty; exit 7`, { tty: true });
    // Whoever is killed, the other one must have a descriptor.
    const held = async () => hasTerminal(daemon.pid) && hasTerminal(await monitor());
    await until("both have the terminal", held);
    await killMonitor();
    await until("both have it again", held);
    await daemon.restart("SIGKILL");
    await until("the next daemon has it", held);
    await killMonitor();
    await daemon.exec(id, "touch /go");
    const { exitCode, status } = await daemon.exited(id);
    expect(exitCode).toBe(keepsExits ? 7 : 255); // init's child since the daemon was killed
    const log = readFileSync(status.log_path!, "utf8");
    const lines = logText(log)
      .split("\n")
      .filter((line) => line !== "waits");
    expect(lines).toEqual([...numbers(1000), "/dev/pts/0", ""]);
    await daemon.removePod(podId);
  });

  test("leaves no pinned process when the containers are gone", async () => {
    await daemon.removeAllPods(); // of a test that failed
    const mounts = readFileSync("/proc/self/mountinfo", "utf8").split("\n");
    expect(
      mounts.filter((line) => line.includes(`${daemon.dir}/`) && line.includes("pidfs")),
    ).toEqual([]);
  });
});
