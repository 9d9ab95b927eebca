// Tests upgrades: another build replaces the executable while containers write, end, read and are created;
// daemon and monitor change to it, and no container notices. A broken build harms nothing: the old monitor
// stays, or another one takes its place.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { isGuest, testMs, until } from "./expect.ts";
import { busybox, Daemon, executable } from "./harness.ts";
import { busyboxImage } from "./image_maker.ts";
import { buildNext, nextForGuests } from "./next_build.ts";
import { countLines, newTally, writerScript } from "./storm.ts";

const { ContainerState } = runtime.v1;
const why =
  isGuest && !existsSync(nextForGuests)
    ? " (in a guest: skipped, run test/next_build.ts first)"
    : "";

let folder: string;
let next: string;
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  if (why !== "") return;
  folder = mkdtempSync(join(tmpdir(), "isulad-upgrade-"));
  next = isGuest ? nextForGuests : join(folder, "next");
  if (!isGuest) buildNext(next);
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
}, testMs(120_000));
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  if (folder !== undefined) rmSync(folder, { recursive: true, force: true });
});

/** Replaces the file like a package manager: running processes keep the old one. */
function install(build: string, fault = ""): void {
  const program = join(folder, "bin/isulad-ts");
  rmSync(`${program}.fault`, { force: true });
  if (fault !== "") writeFileSync(`${program}.fault`, fault);
  copyFileSync(build, `${program}.new`);
  renameSync(`${program}.new`, program);
}

const runs = (pid: number) => readlinkSync(`/proc/${pid}/exe`);
const current = () => join(folder, "bin/isulad-ts");

/** Returns the pids of a pod's containers with their start times, from the kernel. */
function processes(ids: string[]): string[] {
  return ids.map((id) => {
    const record = join(daemon.dir, "state/monitor/containers", `${id}.json`);
    const { pid } = JSON.parse(readFileSync(record, "utf8")) as { pid: number };
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return `${pid} ${stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]}`;
  });
}

/** Runs short containers in turn until stopped; returns their number and the failures. */
function load(): { count: () => number; stop(): Promise<string[]> } {
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
        // The daemon is being restarted.
        if (!/Cannot reach|dropped|closed|monitor ended|shut down/i.test(String(error))) {
          wrong.push(String(error));
        }
        await sleep(50);
      }
    }
  })();
  return {
    count: () => count,
    stop: async () => {
      stopped.abort();
      await running;
      return wrong;
    },
  };
}

async function changeOver(build: string, fault = ""): Promise<void> {
  install(build, fault);
  await daemon.restart();
}

describe.skipIf(why !== "")(`the executable is replaced${why}`, () => {
  test("by a good build under load changes daemon and monitor unnoticed", async () => {
    const writers = await Promise.all(
      [1, 2, 3].map(() => daemon.run(podId, pod, writerScript(isGuest ? 4 : 40))),
    );
    const ending = await daemon.run(
      podId,
      pod,
      "until [ -e /end ]; do usleep 50000; done; exit 42",
    );
    const terminal = await daemon.run(podId, pod, writerScript(1), { tty: true });
    const before = processes([...writers, ending, terminal]);
    const [monitor] = daemon.monitors();
    const busy = load();
    await until("containers come and go", () => busy.count() > 2);
    await changeOver(next);
    await until("the monitor runs the new build", () => runs(monitor!) === current());
    expect(runs(daemon.pid)).toBe(current());
    await until("it is the only one", () => daemon.monitors().join() === String(monitor));
    expect(processes([...writers, ending, terminal])).toEqual(before);
    const count = busy.count();
    await until("they go on", () => busy.count() > count + 2);
    expect(await busy.stop()).toEqual([]);
    await daemon.exec(ending, "touch /end");
    expect((await daemon.exited(ending)).exitCode).toBe(42);
    const tally = newTally();
    for (const id of [...writers, terminal]) {
      await daemon.client.StopContainer({ container_id: id, timeout: toLong(10) });
      const { status } = await daemon.exited(id);
      countLines(readFileSync(status.log_path!, "utf8"), tally, id);
    }
    expect(tally.problems).toEqual([]);
    expect(tally.linesRepeated).toBe(0);
  });

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
      await until("the monitor is asked", () =>
        daemon.log.slice(logged).includes("was not upgraded"),
      );
      await until("it is the only one", () => daemon.monitors().join() === String(monitor));
      expect(runs(monitor!)).toContain("(deleted)");
      expect(processes([id])).toEqual(before);
      expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
      expect((await daemon.output(podId, pod, "exit 9")).exitCode).toBe(9);
      expect(daemon.log.slice(logged).split("upgrading the monitor")).toHaveLength(2);
      await daemon.client.RemoveContainer({ container_id: id });
    },
  );

  test("by one that exits after its handover: another monitor continues", async () => {
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
    expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
    expect(processes([id])).toEqual(before);
    expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(10) });
    const { status } = await daemon.exited(id);
    const tally = newTally();
    countLines(readFileSync(status.log_path!, "utf8"), tally, id);
    expect(tally.problems).toEqual([]);
  });
});
