// Another build replaces the executable while containers write, end, read and are made: daemon and
// monitor change over, and no container notices. A build that is broken takes nothing down: the old
// monitor stays, or another one takes over.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import {
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { busybox, Daemon, executable } from "./harness.ts";
import { logText } from "./log_text.ts";
import { busyboxImage } from "./image_maker.ts";
import { countLines, newTally, writerScript } from "./storm.ts";

const { ContainerState } = runtime.v1;
const root = join(import.meta.dirname, "..");
/** Nobody can build in a guest: it has no packages of npm's for another platform, and no time. */
const canBuild = process.env["ISULAD_SLOW"] !== "1";

let folder: string;
let next: string;
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

/** What the second build does wrong, as a file beside it says; without one it is a good build. */
const faults = `
import { readFileSync as read, rmSync as rm } from "node:fs";
const fault = (() => {
  try {
    return read(process.execPath + ".fault", "utf8");
  } catch {
    return "";
  }
})();
if (process.argv[2] === "monitor") {
  const checks = process.argv.includes("--check-state");
  if (fault === "refuses" && checks) {
    process.stderr.write("this build cannot read that\\n");
    process.exit(3);
  }
  if (fault === "crashes" && checks) process.kill(process.pid, "SIGSEGV");
  if (fault === "ends once" && !checks) {
    rm(process.execPath + ".fault");
    process.exit(9);
  }
}
`;

/** Builds the same source, with faults on demand, outside any repository: its commit is another. */
function buildAnother(): string {
  const copy = join(folder, "source");
  for (const name of ["src", "proto", "dist/build.ts", "package.json", "tsconfig.json"]) {
    cpSync(join(root, name), join(copy, name), { recursive: true });
  }
  symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
  const main = join(copy, "src/main.ts");
  writeFileSync(main, `${faults}${readFileSync(main, "utf8")}`);
  const done = spawnSync(process.execPath, ["dist/build.ts"], { cwd: copy, encoding: "utf8" });
  if (done.status !== 0) throw new Error(`The second build failed: ${done.stderr}`);
  return join(copy, "dist/isulad-ts");
}

beforeAll(async () => {
  if (!canBuild) return;
  folder = mkdtempSync(join(tmpdir(), "isulad-upgrade-"));
  next = buildAnother();
  const program = join(folder, "bin/isulad-ts");
  mkdirSync(join(folder, "bin"));
  copyFileSync(executable, program);
  daemon = new Daemon({ executable: program });
  daemon.writeConfig();
  mkdirSync(daemon.cniDir);
  daemon.writeNetwork();
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
  pod = daemon.podConfig();
  podId = await daemon.runPod(pod);
}, 120_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  if (folder !== undefined) rmSync(folder, { recursive: true, force: true });
});

/** As a package manager does it: the file is another, whoever runs the old one keeps it. */
function install(build: string, fault = ""): void {
  const program = join(folder, "bin/isulad-ts");
  rmSync(`${program}.fault`, { force: true });
  if (fault !== "") writeFileSync(`${program}.fault`, fault);
  copyFileSync(build, `${program}.new`);
  renameSync(`${program}.new`, program);
}

const runs = (pid: number) => readlinkSync(`/proc/${pid}/exe`);
const current = () => join(folder, "bin/isulad-ts");

async function until(what: string, done: () => boolean, withinMs = 15_000): Promise<void> {
  const end = Date.now() + withinMs;
  while (!done()) {
    if (Date.now() > end) throw new Error(`Not in time: ${what}\n${daemon.log.slice(-3000)}`);
    await sleep(50);
  }
}

/** The pids of a pod's containers as the kernel has them, with the times of their starts. */
function processes(ids: string[]): string[] {
  return ids.map((id) => {
    const record = join(daemon.dir, "state/monitor/containers", `${id}.json`);
    const { pid } = JSON.parse(readFileSync(record, "utf8")) as { pid: number };
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return `${pid} ${stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]}`;
  });
}

/** Short containers one after the other, until told to stop: how many, and which went wrong. */
function load(): { stop(): Promise<{ count: number; wrong: string[] }> } {
  const stopped = new AbortController();
  const wrong: string[] = [];
  let count = 0;
  const running = (async () => {
    for (; !stopped.signal.aborted; count++) {
      const code = count % 256;
      try {
        const { exitCode, id } = await daemon.output(podId, pod, `exit ${code}`);
        if (exitCode !== code) wrong.push(`exit ${code} told as ${exitCode}`);
        await daemon.client.RemoveContainer({ container_id: id });
      } catch (error) {
        // There is no daemon while it is restarted.
        if (!/Cannot reach|dropped|closed|monitor ended|shut down/i.test(String(error))) {
          wrong.push(String(error));
        }
        await sleep(50);
      }
    }
  })();
  return {
    stop: async () => {
      stopped.abort();
      await running;
      return { count, wrong };
    },
  };
}

async function changeOver(build: string, fault = ""): Promise<void> {
  install(build, fault);
  await daemon.restart();
}

describe.skipIf(!canBuild)("the executable is replaced", () => {
  test("by a good build, under load: both change over, and nobody notices", async () => {
    const writers = await Promise.all(
      [1, 2, 3].map(() => daemon.run(podId, pod, writerScript(40))),
    );
    const ending = await daemon.run(podId, pod, "sleep 6; exit 42");
    const script = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; usleep 100000; done";
    const terminal = await daemon.run(podId, pod, script, { tty: true });
    const before = processes([...writers, ending, terminal]);
    const [monitor] = daemon.monitors();
    const busy = load();
    await sleep(1000);
    await changeOver(next);
    await until("the monitor runs the new build", () => runs(monitor!) === current());
    expect(runs(daemon.pid)).toBe(current());
    expect(daemon.monitors()).toEqual([monitor!]);
    expect(processes([...writers, ending, terminal])).toEqual(before);
    await sleep(1000);
    const { count, wrong } = await busy.stop();
    expect(wrong).toEqual([]);
    expect(count).toBeGreaterThan(3);
    expect((await daemon.exited(ending)).exitCode).toBe(42);
    const { status } = await daemon.exited(terminal);
    const lines = logText(readFileSync(status.log_path!, "utf8").replaceAll("\r", ""));
    expect(lines).toBe(Array.from({ length: 60 }, (_, at) => `${at + 1}\n`).join(""));
    const tally = newTally();
    for (const id of writers) {
      await daemon.client.StopContainer({ container_id: id, timeout: toLong(10) });
      const exit = await daemon.exited(id);
      countLines(readFileSync(exit.status.log_path!, "utf8"), tally, id);
    }
    expect(tally.problems).toEqual([]);
    expect(tally.linesRepeated).toBe(0);
  }, 90_000);

  test.each(["refuses", "crashes"])(
    "by one whose check %s: the old monitor stays, and is asked once",
    async (fault) => {
      await changeOver(executable);
      const [monitor] = daemon.monitors();
      await until("the monitor runs the first build", () => runs(monitor!) === current());
      const id = await daemon.run(podId, pod, writerScript(5));
      const before = processes([id]);
      const logged = daemon.log.length;
      await changeOver(next, fault);
      await sleep(1500);
      expect(daemon.monitors()).toEqual([monitor!]);
      expect(runs(monitor!)).toContain("(deleted)");
      expect(processes([id])).toEqual(before);
      expect(daemon.log.slice(logged).split("upgrading the monitor")).toHaveLength(2);
      expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
      expect((await daemon.output(podId, pod, "exit 9")).exitCode).toBe(9);
      await daemon.client.RemoveContainer({ container_id: id });
    },
    60_000,
  );

  test("by one that ends when it has taken over: another monitor goes on", async () => {
    await changeOver(executable);
    const [monitor] = daemon.monitors();
    await until("the monitor runs the first build", () => runs(monitor!) === current());
    const id = await daemon.run(podId, pod, writerScript(20));
    const before = processes([id]);
    await changeOver(next, "ends once");
    await until("another monitor", () => {
      const [now, ...more] = daemon.monitors();
      return now !== undefined && now !== monitor && more.length === 0;
    });
    await sleep(500);
    expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
    expect(processes([id])).toEqual(before);
    expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(10) });
    const { status } = await daemon.exited(id);
    const tally = newTally();
    countLines(readFileSync(status.log_path!, "utf8"), tally, id);
    expect(tally.problems).toEqual([]);
  }, 60_000);
});
