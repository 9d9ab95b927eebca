// Tests containers that runc's shim (shim v2) runs, on the newest one that test/shims has built: output, exit
// codes, execs, and what happens when monitor, daemon or shim are killed or stopped.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { toLong } from "../../src/base/int64.ts";
import { silentLog } from "../../src/base/log.ts";
import { MonitorClient } from "../../src/monitor_client/client.ts";
import { readShimFile } from "../../src/shim/shim_file.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";
import { chosenRuncShim, runcHandler } from "../shim_programs.ts";

const version = chosenRuncShim();
const isMatrix = process.env["ISULAD_SHIM"] !== undefined;
let daemon: Daemon;
let podId: string;
let pod: ReturnType<Daemon["hostPodConfig"]>;

/** Returns the pids of this daemon's shims; their arguments name its folder. */
function shims(): number[] {
  const { stdout } = spawnSync("ps", ["-eo", "pid,args"], { encoding: "utf8" });
  const lines = stdout.split("\n").filter((line) => /containerd-shim-runc-v2 .*-id/.test(line));
  return lines.filter((line) => line.includes(daemon.dir)).map((line) => Number.parseInt(line, 10));
}

/** Returns the path of the socket of a container's shim. */
function socketOf(id: string): string {
  return readShimFile(join(daemon.dir, "state/monitor/shims", id))!.path;
}

async function killMonitor(): Promise<void> {
  const [old] = daemon.monitors();
  process.kill(old!, "SIGKILL");
  await until("another monitor runs", () => daemon.monitors().some((pid) => pid !== old));
}

describe.skipIf(version === undefined)("a container that a shim runs", () => {
  beforeAll(async () => {
    const runtimes = { shim: runcHandler(version!) };
    daemon = await startDaemon({
      network: false,
      config: { runtimes, "default-runtime": "shim" },
    });
    pod = daemon.hostPodConfig();
    podId = await daemon.runPod(pod);
  });
  afterAll(() => daemon?.[Symbol.asyncDispose]());
  afterEach(async () => {
    await daemon.removePod(podId);
    await until("the shims have ended", () => shims().length === 0);
    podId = await daemon.runPod(pod);
  });

  test("has all its output in its log, and its exit code", async () => {
    const id = await daemon.run(
      podId,
      pod,
      "seq 100000; echo error >&2; sleep 0.1; printf half; exit 7",
    );
    const { exitCode, status } = await daemon.exited(id);
    expect(exitCode).toBe(7);
    const text = logText(readFileSync(status.log_path!, "utf8"));
    const numbers = Array.from({ length: 100_000 }, (_, index) => `${index + 1}\n`).join("");
    expect(text.replace("error\n", "") === `${numbers}half`).toBe(true);
    expect(text).toContain("error\n");
  });

  test("runs ten execs at a time, of which no byte is lost", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    const exec = () => daemon.exec(id, "seq 2000; seq 2000 >&2; exit 5");
    const results = await Promise.all(Array.from({ length: 10 }, exec));
    for (const { exitCode, stdout, stderr } of results) {
      expect([exitCode, stdout.length, stderr.length]).toEqual([5, 8893, 8893]);
    }
    expect(shims()).toHaveLength(1);
  });

  test("loses an exec at its timeout with all its descendants", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    const command = "setsid sleep 4711 & (sleep 4711 &); sleep 4711";
    const cmd = ["sh", "-c", command];
    const request = { container_id: id, cmd, timeout: toLong(1) };
    expect((await failure(daemon.client.ExecSync(request))).message).toContain("killed after 1 s");
    const left = async () => (await daemon.exec(id, "ps | grep -c '[s]leep 4711'")).stdout;
    await until("all of it has ended", async () => (await left()) === "0\n");
  });

  test("ends by its stop signal, or is killed after the grace period", async () => {
    const traps = await daemon.run(
      podId,
      pod,
      "trap 'exit 3' TERM; echo on; while :; do sleep 0.1; done",
    );
    const ignores = await daemon.run(
      podId,
      pod,
      "trap '' TERM; echo on; while :; do sleep 0.1; done",
    );
    for (const [id, seconds] of [
      [traps, 60],
      [ignores, 1],
    ] as const) {
      await daemon.logged(id, "on");
      await daemon.client.StopContainer({ container_id: id, timeout: toLong(seconds) });
    }
    expect((await daemon.exited(traps)).exitCode).toBe(3);
    expect((await daemon.exited(ignores)).exitCode).toBe(137);
  });

  test("has a terminal, and new limits", async () => {
    const id = await daemon.run(podId, pod, "tty; sleep 1000", { tty: true });
    await daemon.logged(id, "/dev/pts/0");
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    const limit =
      "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max";
    expect((await daemon.exec(id, limit)).stdout).toBe(`${64 << 20}\n`);
  });

  test("stays its shim's when daemon.json names another default runtime", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    const runtimes = { shim: runcHandler(version!) };
    daemon.writeConfig({ runtimes, "default-runtime": "runc" });
    await daemon.restart();
    expect((await daemon.exec(id, "echo hi")).stdout).toBe("hi\n");
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    const refused = await failure(daemon.create(podId, pod, "true"));
    expect(refused.code).toBe("FAILED_PRECONDITION");
    expect(refused.message).toContain('was of kind "shim" when the pod was made');
    daemon.writeConfig({ runtimes, "default-runtime": "shim" });
    await daemon.restart();
    const next = await daemon.run(podId, pod, "exit 6");
    expect((await daemon.exited(next)).exitCode).toBe(6);
  });

  test("has statistics of its own cgroup", async () => {
    const id = await daemon.run(
      podId,
      pod,
      "head -c 20000000 /dev/zero | tail -c 20000000 | sleep 1000",
    );
    await until("it uses memory", async () => {
      const { stats } = await daemon.client.ContainerStats({ container_id: id });
      return Number(stats?.memory?.usage_bytes?.value ?? 0) > 10_000_000;
    });
  });

  test("loses nothing when the monitor is replaced by another build in place", async () => {
    const other = join(daemon.dir, "other-build");
    copyFileSync(executable, other);
    const count = 200_000;
    const writer = await daemon.run(podId, pod, `seq ${count}; sleep 2; echo end; exit 77`);
    const [pid] = daemon.monitors();
    await using client = new MonitorClient({
      state: join(daemon.dir, "state"),
      program: [other],
      log: silentLog(),
      onExit: () => {},
      onHello: () => {},
    });
    await client.connect();
    expect((await daemon.exec(writer, "echo hi")).stdout).toBe("hi\n");
    await until("it is the daemon's build again", () => daemon.monitors()[0] === pid);
    const { exitCode, status } = await daemon.exited(writer);
    expect(exitCode).toBe(77);
    const numbers = Array.from({ length: count }, (_, index) => `${index + 1}\n`).join("");
    expect(logText(readFileSync(status.log_path!, "utf8")) === `${numbers}end\n`).toBe(true);
  });

  test("loses nothing when the monitor and then the daemon are killed", async () => {
    const count = 1_000;
    const writer = `i=0; while [ $i -lt ${count} ]; do echo $i; i=$((i+1)); usleep 1000; done; exit 4`;
    const id = await daemon.run(podId, pod, writer);
    const other = await daemon.run(podId, pod, "sleep 1000");
    await killMonitor();
    expect((await daemon.exec(other, "echo hi")).stdout).toBe("hi\n");
    await daemon.stop("SIGKILL");
    for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
    await daemon.start();
    const { exitCode, status } = await daemon.exited(id, 100_000); // it starts a thousand programs
    expect(exitCode).toBe(4);
    const seen = new Set(logText(readFileSync(status.log_path!, "utf8")).split("\n"));
    const missing = Array.from({ length: count }, (_, i) => `${i}`).filter((one) => !seen.has(one));
    expect(missing).toEqual([]);
  });

  test("shares a shim with its pod, whose socket goes with the last container", async () => {
    const ids = [
      await daemon.run(podId, pod, "sleep 1000"),
      await daemon.run(podId, pod, "sleep 1000"),
    ];
    const [socket = "", other] = ids.map(socketOf);
    expect(other).toBe(socket);
    await daemon.client.RemoveContainer({ container_id: ids[0]! });
    expect((await daemon.exec(ids[1]!, "echo hi")).stdout).toBe("hi\n");
    await daemon.client.RemoveContainer({ container_id: ids[1]! });
    await until("the socket is removed", () => !existsSync(socket));
    const next = await daemon.run(podId, pod, "exit 6");
    expect((await daemon.exited(next)).exitCode).toBe(6);
  });

  test("ends with 137 and the reason when its shim is killed, and others can start", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    const socket = socketOf(id);
    for (const pid of shims()) process.kill(pid, "SIGKILL");
    const { exitCode, status } = await daemon.exited(id);
    expect(exitCode).toBe(137);
    expect(status.message).toContain("its shim has ended");
    const next = await daemon.run(podId, pod, "exit 6");
    expect((await daemon.exited(next)).exitCode).toBe(6);
    await daemon.removePod(podId);
    await until("the socket is removed", () => !existsSync(socket));
  });

  // Takes ten seconds: the matrix has it, the suite does not.
  test.if(isMatrix)(
    "whose shim is stopped is killed by StopContainer, and delays no other pod",
    async () => {
      const id = await daemon.run(podId, pod, "sleep 1000");
      const [shim] = shims();
      process.kill(shim!, "SIGSTOP");
      const stopped = daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
      const otherPod = daemon.hostPodConfig();
      const other = await daemon.runPod(otherPod);
      const quick = await daemon.run(other, otherPod, "exit 2");
      expect((await daemon.exited(quick)).exitCode).toBe(2);
      await daemon.removePod(other);
      expect((await daemon.status(id)).state).toBe(1); // it still waits for its shim
      await stopped;
      expect((await daemon.exited(id)).exitCode).toBe(137);
    },
  );
});
