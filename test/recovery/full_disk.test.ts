// Tests a disk that is full at every step: graph or state is a small tmpfs with room for a number of pages or
// files. The caller gets the error, the daemon rolls the call back, and running containers go on and can be
// removed.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError } from "../../src/base/errors.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { busybox, Daemon } from "../harness.ts";
import { mountTmpfs } from "../host.ts";
import { busyboxImage } from "../image_maker.ts";

const pageBytes = 4096;
const plentyBytes = 64 << 20;
const plentyFiles = 20_000;
/** Nothing here takes long unless something waits for ever. */
const timeoutMs = 30_000;
/** How much room is left, in pages or in files: from none to enough for everything. */
const rooms = [0, 1, 2, 3, 4, 6, 8, 12, 16, 40];

let daemon: Daemon;
let livePod: string;
let live: string;

beforeAll(async () => {
  daemon = new Daemon({});
  for (const name of ["graph", "state"]) {
    mountTmpfs(join(daemon.dir, name));
    plenty(name);
  }
  daemon.writeConfig();
  mkdirSync(daemon.cniDir);
  daemon.writeNetwork();
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
  const pod = daemon.podConfig();
  livePod = await daemon.runPod(pod);
  live = await daemon.run(livePod, pod, ["sleep", "600"]);
  await life();
});
afterAll(async () => {
  if (daemon === undefined) return;
  for (const name of ["graph", "state"]) plenty(name);
  await daemon[Symbol.asyncDispose]();
});

function remount(name: string, options: string): void {
  execFileSync("mount", ["-o", `remount,${options}`, join(daemon.dir, name)]);
}

function plenty(name: string): void {
  remount(name, `size=${plentyBytes},nr_inodes=${plentyFiles}`);
}

/** Leaves so much room; disposed of, there is plenty again. */
function limit(name: string, what: string, room: number): Disposable {
  const { blocks, bfree, bsize, files, ffree } = statfsSync(join(daemon.dir, name));
  if (what === "pages") remount(name, `size=${(blocks - bfree) * bsize + room * pageBytes}`);
  else remount(name, `nr_inodes=${files - ffree + room}`);
  return { [Symbol.dispose]: () => plenty(name) };
}

/** A pod with a container that runs; what failed first, and what could not be removed at once. */
async function life(): Promise<{ failed?: CriError; stuck?: CriError }> {
  const pod = daemon.podConfig();
  const outcome: { failed?: CriError; stuck?: CriError } = {};
  try {
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, "echo up; sleep 600");
    await daemon.exec(id, "true");
    await daemon.client.StopContainer({ container_id: id }, { timeoutMs });
  } catch (error) {
    if (!(error instanceof CriError)) throw error;
    outcome.failed = error;
  }
  try {
    for (const { id } of await others()) await remove(id!);
  } catch (error) {
    if (!(error instanceof CriError)) throw error;
    outcome.stuck = error;
  }
  return outcome;
}

async function remove(podId: string): Promise<void> {
  await daemon.client.StopPodSandbox({ pod_sandbox_id: podId }, { timeoutMs });
  await daemon.client.RemovePodSandbox({ pod_sandbox_id: podId }, { timeoutMs });
}

async function others() {
  const { items } = await daemon.client.ListPodSandbox({});
  return items.filter(({ id }) => id !== livePod);
}

test("a damaged record is passed over where nothing can be put aside, and put aside later", async () => {
  const id = "ab".repeat(32);
  const folder = join(daemon.dir, "graph/containers", id);
  await daemon.stop();
  mkdirSync(folder);
  writeFileSync(join(folder, "container.json"), "{");
  const logged = daemon.log.length;
  {
    using _ = limit("graph", "files", 0);
    await daemon.start();
    expect(daemon.log.slice(logged)).toContain(`stays in ${folder}`);
    expect((await daemon.exec(live, "echo alive")).stdout).toBe("alive\n");
  }
  await daemon.restart();
  expect(readdirSync(join(daemon.dir, "graph/set-aside")).join()).toContain(`container-${id}`);
});

test("a pidfile for which there is no room is told of, and done without", async () => {
  await daemon.stop();
  const folder = join(daemon.dir, "full"); // of its own: a start may free a page of state
  mountTmpfs(folder);
  writeFileSync(join(folder, "filler"), Buffer.alloc(pageBytes));
  remount("full", `size=${pageBytes}`);
  const pidfile = join(folder, "isulad.pid");
  daemon.writeConfig({ pidfile });
  const logged = daemon.log.length;
  await daemon.start();
  expect((await daemon.status(live)).state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
  expect(daemon.log.slice(logged)).toContain(pidfile);
  daemon.writeConfig();
  await daemon.restart();
  expect((await daemon.exec(live, "echo alive")).stdout).toBe("alive\n");
});

describe.each(["graph", "state"])("%s", (name) => {
  test.each(["pages", "files"])(
    "without room for more than so many %s",
    async (what) => {
      const before = daemon.snapshot();
      const told: string[] = [];
      let failures = 0;
      for (const room of rooms) {
        const { failed, stuck } = await (async () => {
          using _ = limit(name, what, room);
          return await life();
        })();
        if (failed !== undefined) failures++;
        const where = `${room} ${what} left:`;
        // The last is runc's own way to say it.
        const says = /no space left on the disk of \w+|unable to store init state/i;
        if (failed !== undefined && !says.test(failed.message)) {
          told.push(`${where} ${failed.code} ${failed.message}`);
        }
        if (stuck !== undefined) told.push(`${where} cannot be removed: ${stuck.message}`);
        for (const { id } of await others()) await remove(id!);
        const leaks = await daemon.leaksSince(before);
        told.push(...leaks.map((leak) => `${where} left behind: ${leak}`));
        const { state } = await daemon.status(live);
        expect(state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
        expect((await daemon.exec(live, "echo alive")).stdout).toBe("alive\n");
      }
      expect(told).toEqual([]);
      expect(failures).toBeGreaterThan(0);
    },
    400_000,
  );
});

test("what ended while no daemon was there is told of at the start, though state has no room", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const [ended, runs] = [await run(podId, pod), await run(podId, pod)];
  await daemon.stop("SIGKILL");
  process.kill(ended.pid, "SIGKILL");
  const exit = join(daemon.dir, "state/monitor/exits", `${ended.id}.json`);
  await until("its exit is recorded", () => existsSync(exit));
  await sleep(100); // with all that the monitor writes of it
  {
    using _ = limit("state", "pages", 0);
    await daemon.start();
    await until("its exit is told", async () => (await daemon.status(ended.id)).exit_code === 137);
  }
  expect((await daemon.exec(runs.id, "echo alive")).stdout).toBe("alive\n");
  await daemon.client.StopContainer({ container_id: ended.id }, { timeoutMs });
  await remove(podId);
});

test("a monitor without room for its log goes on", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const { id, pid } = await run(podId, pod);
  const monitors = daemon.monitors();
  const log = join(daemon.dir, "state/monitor.log");
  appendFileSync(log, "\n".repeat(pageBytes - (statSync(log).size % pageBytes)));
  {
    using _ = limit("state", "pages", 0);
    process.kill(pid, "SIGKILL");
    expect((await daemon.exited(id)).exitCode).toBe(137);
    await sleep(1_000); // in which it tries to log that it cannot record the exit
    expect(daemon.monitors()).toEqual(monitors);
  }
  await remove(podId);
});

describe("an exit for which state had no room outlives daemon and monitor that are killed later", () => {
  /** A container that has ended without room in state; its change is on disk. */
  async function endWithoutRoom(podId: string, pod: PodSandboxConfig) {
    const { id, pid } = await run(podId, pod);
    await sleep(500); // what its start has left in state makes no room later
    using _ = limit("state", "pages", 0);
    process.kill(pid, "SIGKILL");
    const { exitCode, status } = await daemon.exited(id);
    expect(exitCode).toBe(137);
    const settled = join(daemon.dir, "graph/containers", id, "container.settled.json");
    await until("its change is on disk", () => {
      return existsSync(settled) && readFileSync(settled, "utf8").includes('"exited"');
    });
    return { id, finishedAt: String(status.finished_at) };
  }

  async function killBoth(): Promise<void> {
    await daemon.stop("SIGKILL");
    for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
    await until("there is no monitor", () => daemon.monitors().length === 0);
  }

  const recordsOf = (id: string) =>
    ["containers", "exits"].map((kind) => join(daemon.dir, "state/monitor", kind, `${id}.json`));

  test("the monitor writes it when there is room", async () => {
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const { id, finishedAt } = await endWithoutRoom(podId, pod);
    await until("it is written", () => recordsOf(id).every((file) => existsSync(file)));
    await killBoth();
    await daemon.start();
    const { exit_code, finished_at } = await daemon.status(id);
    expect([exit_code, String(finished_at)]).toEqual([137, finishedAt]);
    await remove(podId);
  });

  test("the daemon has it without the monitor", async () => {
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const { id, finishedAt } = await endWithoutRoom(podId, pod);
    await killBoth();
    for (const file of recordsOf(id)) rmSync(file, { force: true });
    await daemon.start();
    const { exit_code, finished_at } = await daemon.status(id);
    expect([exit_code, String(finished_at)]).toEqual([137, finishedAt]);
    await remove(podId);
  });
});

async function run(podId: string, pod: PodSandboxConfig): Promise<{ id: string; pid: number }> {
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  return { id, pid: await daemon.pidOf(id) };
}
