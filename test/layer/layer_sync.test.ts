// Tests that new layers are synced to disk in the background, after which their records no longer name a
// boot. Needs root.
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

/** Loads an image with a layer of its own. */
async function load(): Promise<void> {
  const image = makeImage([makeLayer([{ name: `f${count++}`, data: String(Math.random()) }])]);
  const file = join(fixture.graph, "image.tar");
  fs.writeFileSync(file, ociArchive([{ image, name: `x/y:${count}` }]));
  await fixture.store.load(file, { signal: within() });
}

function unsyncedCount(): number {
  const records = fs.globSync(join(fixture.graph, "layers/*.json"));
  return records.filter((path) => fs.readFileSync(path, "utf8").includes("unsyncedBoot")).length;
}

/** Pids of this process's running unpack helpers. */
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
      return false; // it has exited
    }
  });
}

/** Loads an image and stops the helper that syncs it, before it is done. */
async function loadUnsynced(): Promise<number> {
  for (let tries = 0; tries < 10; tries++) {
    await until("no helper runs", () => helpers().length === 0);
    await load();
    for (let looks = 0; looks < 500 && unsyncedCount() > 0; looks++) {
      const [pid] = helpers();
      if (pid !== undefined) process.kill(pid, "SIGSTOP");
      if (pid !== undefined && unsyncedCount() > 0) return pid;
      if (pid !== undefined) process.kill(pid, "SIGCONT");
      await Bun.sleep(1);
    }
  }
  throw new Error("every sync was done before it could be stopped");
}

test("a layer loaded during a sync is synced afterwards", async () => {
  const pid = await loadUnsynced();
  await load();
  expect(unsyncedCount()).toBe(2);
  process.kill(pid, "SIGCONT");
  await until("both layers are synced", () => unsyncedCount() === 0);
});

test("closing the store syncs new layers", async () => {
  await load();
  await fixture.store[Symbol.asyncDispose]();
  expect(unsyncedCount()).toBe(0);
});

test("closing the store gives up a hung sync; the next start repeats it", async () => {
  const pid = await loadUnsynced();
  await fixture.store[Symbol.asyncDispose]();
  expect(unsyncedCount()).toBe(1);
  await until("the helper has exited", () => !helpers().includes(pid));
  await fixture.reopen();
  await until("the layer is synced", () => unsyncedCount() === 0);
  expect(fixture.store.list()).toHaveLength(1);
});
