// Tests which records of images and layers a power loss leaves, and what a start makes of an empty one. Needs root.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { execFileSync, spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../src/base/log.ts";
import { ImageRecords } from "../../src/image/records.ts";
import { openImageStore, type ImageStore } from "../../src/image/store.ts";
import { until } from "../expect.ts";
import { makeImage, makeLayer, ociArchive, type TestImage } from "../image_maker.ts";
import { storeOptions, within } from "./fixture.ts";

/** The file system writes nothing by itself for five minutes, and a rename is no reason to write the file. */
const mountOptions = "loop,commit=300,noauto_da_alloc";

let dir: string;
let store: ImageStore;
let image: TestImage;
const disk = () => join(dir, "disk");
const graph = () => join(disk(), "graph");
const open = async () => (store = await openImageStore(storeOptions(graph())));
beforeEach(async () => {
  dir = fs.mkdtempSync(join(tmpdir(), "isulad-power-"));
  fs.mkdirSync(disk());
  fs.writeFileSync(`${disk()}.image`, "");
  fs.truncateSync(`${disk()}.image`, 64 << 20);
  execFileSync("mkfs.ext4", ["-q", `${disk()}.image`]);
  execFileSync("mount", ["-o", mountOptions, `${disk()}.image`, disk()]);
  image = makeImage([makeLayer([{ name: "f", data: String(Math.random()) }])]);
  await open();
  await load("x/y:1");
  // On the disk itself: its record is seen under its name a moment earlier.
  await until("its layer is synced", () => afterPowerLoss(hasSyncedLayer));
});
afterEach(async () => {
  await store[Symbol.asyncDispose]();
  execFileSync("umount", [disk()]);
  fs.rmSync(dir, { recursive: true });
});

async function load(name: string, loaded = image): Promise<void> {
  const file = join(dir, "image.tar");
  fs.writeFileSync(file, ociArchive([{ image: loaded, name }]));
  await store.load(file, { signal: within() });
}

const layerRecord = (at: string) =>
  fs.readFileSync(fs.globSync(join(at, "layers/*.json"))[0]!, "utf8");
const hasSyncedLayer = (at: string) =>
  fs.globSync(join(at, "layers/*.json")).length > 0 && !layerRecord(at).includes("unsyncedBoot");
const recordName = () => join("images", `${image.config.digest.slice(7)}.json`);

/** Reads from the graph folder as a power loss at this moment would leave it. */
function afterPowerLoss<T>(read: (graph: string) => T): T {
  const [copy, at] = [join(dir, "copy.image"), join(dir, "copy")];
  fs.copyFileSync(`${disk()}.image`, copy);
  fs.mkdirSync(at, { recursive: true });
  execFileSync("mount", ["-o", "loop", copy, at]);
  try {
    return read(join(at, "graph"));
  } finally {
    spawnSync("umount", [at]);
  }
}

test("a layer that is marked as synced has its whole record on disk", () => {
  expect(afterPowerLoss(layerRecord)).toBe(layerRecord(graph()));
});

test("a record of an image whose layers are synced is on disk when a pull or load ends", async () => {
  const record = (at: string) => fs.readFileSync(join(at, recordName()), "utf8");
  await load("x/y:2");
  expect(afterPowerLoss(record)).toContain('"docker.io/x/y:2"');
  const next = makeImage([makeLayer([{ name: "g", data: String(Math.random()) }])]);
  await load("x/y:2", next); // its own record is on disk with its layer
  expect(afterPowerLoss(record)).toContain('"repoTags":["docker.io/x/y:1"]');
});

test("a record is on disk though the sync of its layers began while it was written", async () => {
  const folder = join(graph(), "raced");
  const records = await ImageRecords.open(folder, silentLog());
  let asked = 0;
  const isSynced = () => asked++ > 0;
  await records.add(store.find("x/y:1")!, image.config.bytes, { isSynced });
  for (const name of fs.readdirSync(folder)) {
    const text = (at: string) => fs.readFileSync(join(at, "raced", name), "utf8");
    expect(afterPowerLoss(text)).toBe(text(graph()));
  }
});

test("a record that a power loss left empty costs no layer, until an image is removed", async () => {
  const small = makeImage([makeLayer([{ name: "h", data: "h" }])]);
  await load("x/z:1", small);
  await store[Symbol.asyncDispose]();
  const trees = fs.readdirSync(join(graph(), "layers/l")).sort();
  fs.truncateSync(join(graph(), recordName()));
  await open();
  expect(store.find("x/y:1")).toBeUndefined();
  expect(fs.readdirSync(join(graph(), "layers/l")).sort()).toEqual(trees);
  const made = () => fs.statSync(fs.globSync(join(graph(), "layers/l/*/f"))[0]!).ino;
  const before = made();
  await load("x/y:1");
  expect(made()).toBe(before);
  await store[Symbol.asyncDispose]();
  fs.truncateSync(join(graph(), recordName()));
  await open();
  await store.remove("x/z:1");
  expect(fs.readdirSync(join(graph(), "layers/l"))).toEqual(["empty"]);
});
