// New layers come to the disk by themselves, and their marks go: what a power loss or reboot would take
// otherwise. Needs root.
import { afterEach, beforeEach, expect, test } from "bun:test";
import * as fs from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { until } from "../expect.ts";
import { makeImage, makeLayer, ociArchive } from "../image_maker.ts";
import { openFixture, within, type Fixture } from "../image/fixture.ts";

let fixture: Fixture;
beforeEach(async () => {
  fixture = await openFixture();
});
afterEach(async () => await fixture[Symbol.asyncDispose]());

let count = 0;

/** An image of its own layer. */
async function load(): Promise<void> {
  const image = makeImage([makeLayer([{ name: `f${count++}`, data: String(Math.random()) }])]);
  const file = join(fixture.graph, "image.tar");
  fs.writeFileSync(file, ociArchive([{ image, name: `x/y:${count}` }]));
  await fixture.store.load(file, { signal: within() });
}

function marks(): number {
  const records = fs.globSync(join(fixture.graph, "layers/*.json"));
  return records.filter((path) => fs.readFileSync(path, "utf8").includes("unsyncedBoot")).length;
}

/** This process's helpers that have not ended. */
function helpers(): number[] {
  const pids = fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  return pids.map(Number).filter((pid) => {
    try {
      const [state, parent] = fs
        .readFileSync(`/proc/${pid}/stat`, "utf8")
        .split(") ")[1]!
        .split(" ");
      if (state === "Z" || Number(parent) !== process.pid) return false;
      return fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("unpack");
    } catch {
      return false; // it has ended
    }
  });
}

/** Loads an image and stops the helper that is to sync it, before it has. */
async function loadUnsynced(): Promise<number> {
  for (let tries = 0; tries < 10; tries++) {
    await until("no helper runs", () => helpers().length === 0);
    await load();
    for (let looks = 0; looks < 500 && marks() > 0; looks++) {
      const [pid] = helpers();
      if (pid !== undefined) process.kill(pid, "SIGSTOP");
      if (pid !== undefined && marks() > 0) return pid;
      if (pid !== undefined) process.kill(pid, "SIGCONT");
      await Bun.sleep(1);
    }
  }
  throw new Error("Every sync was over before it could be stopped");
}

test("a layer that comes while others are synced is synced after them", async () => {
  const pid = await loadUnsynced();
  await load();
  expect(marks()).toBe(2);
  process.kill(pid, "SIGCONT");
  await until("both marks go", () => marks() === 0);
});

test("the store's end waits until new layers are on the disk", async () => {
  await load();
  await fixture.store[Symbol.asyncDispose]();
  expect(marks()).toBe(0);
});

test("the store's end does not wait for a sync that does not end; the next start does it", async () => {
  const pid = await loadUnsynced();
  await fixture.store[Symbol.asyncDispose]();
  expect(marks()).toBe(1);
  await until("the helper is gone", () => !helpers().includes(pid));
  await fixture.reopen();
  await until("the mark goes", () => marks() === 0);
  expect(fixture.store.list()).toHaveLength(1);
});
