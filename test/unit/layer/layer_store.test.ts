// Tests the names of layers, and which calls wait for the removal of layers: only those whose callers need its space.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../../src/base/log.ts";
import { LayerGc } from "../../../src/image/layer_gc.ts";
import type { ImageRecords } from "../../../src/image/records.ts";
import type { RootfsMounts } from "../../../src/image/rootfs_mounts.ts";
import { LayerStore, scratchPaths } from "../../../src/layer/layer_store.ts";
import { Removals } from "../../../src/layer/removals.ts";
import { removeTree } from "../../../src/sys/remove_tree.ts";

const chainId = `sha256:${"a".repeat(64)}`;
let root: string;
/** Removals wait for it. */
let disk: PromiseWithResolvers<void>;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "isulad-layers-"));
  disk = Promise.withResolvers();
});

afterEach(() => rmSync(root, { recursive: true, force: true }));

function open(mounted = new Set<string>()): Promise<LayerStore> {
  const remove = async (path: string) => {
    await disk.promise;
    await removeTree(path);
  };
  const removals = new Removals(silentLog(), remove);
  return LayerStore.open(root, { driver: "overlay2", mounted, log: silentLog(), removals });
}

/** What is left of layers. */
function remains(): string[] {
  const trees = readdirSync(join(root, "l")).filter((name) => name !== "empty");
  return [...trees, ...readdirSync(join(root, "scratch"))];
}

/** Its only file has the end of its chain ID as name. */
async function addLayer(store: LayerStore, id = chainId): Promise<void> {
  const scratch = await store.makeScratch();
  const { tree, manifest } = scratchPaths(scratch);
  mkdirSync(tree);
  writeFileSync(join(tree, id.slice(-4)), "");
  writeFileSync(manifest, "");
  const size = { sizeBytes: 1, inodes: 1, digest: undefined };
  await store.commit({ chainId: id, diffId: id, ...size }, scratch);
  await removeTree(scratch);
}

/** A collector where nothing needs a layer. */
function collectorOf(layers: LayerStore): LayerGc {
  const records = { list: () => [] } as unknown as ImageRecords;
  const mounts = { used: () => new Set() } as unknown as RootfsMounts;
  return new LayerGc({ layers, records, mounts });
}

test("opening does not wait for the removal of what was left, which ends later", async () => {
  mkdirSync(join(root, "scratch/half/tree"), { recursive: true });
  mkdirSync(join(root, "l/orphan"), { recursive: true });
  mkdirSync(join(root, "l/mounted"));
  const store = await open(new Set(["mounted"]));
  expect(remains()).toContain("half");
  disk.resolve();
  await store.removals.freed();
  expect(remains()).toEqual(["mounted"]);
});

test("a removal that the end of the daemon cuts off goes on at the next start", async () => {
  for (const name of ["one", "two"]) mkdirSync(join(root, "scratch", name), { recursive: true });
  const store = await open();
  store.removals.end();
  disk.resolve();
  await store.removals.freed();
  expect(remains()).toHaveLength(1);
  await (await open()).removals.freed();
  expect(remains()).toEqual([]);
});

test("the end of an operation that evicts nothing waits for no removal; the removal of an image waits for all", async () => {
  for (const name of ["one", "two"]) mkdirSync(join(root, "l", name), { recursive: true });
  const store = await open();
  await addLayer(store);
  const gc = collectorOf(store);
  const removal = gc.collect();
  expect(store.has(chainId)).toBe(false);
  await gc.hold([])[Symbol.asyncDispose]();
  let isFree = false;
  const freeing = gc.free().then(() => (isFree = true));
  await Bun.sleep(20);
  expect({ isFree, remains: remains().length > 0 }).toEqual({ isFree: false, remains: true });
  disk.resolve();
  await Promise.all([removal, freeing]);
  expect(remains()).toEqual([]);
});

test("an orphaned tree is removed although its layer is made again meanwhile", async () => {
  mkdirSync(join(root, "scratch/half"), { recursive: true });
  mkdirSync(join(root, "l", "a".repeat(12)), { recursive: true });
  const store = await open();
  await addLayer(store);
  disk.resolve();
  await store.removals.freed();
  await store.collect(new Set(), () => true);
  expect(existsSync(store.tree(chainId))).toBe(true);
  expect(remains()).toEqual(["a".repeat(12)]);
});

/** A layer whose digest begins with the same 48 bits as chainId. */
const alike = `sha256:${"a".repeat(12)}${"b".repeat(52)}`;

test("two layers whose digests begin alike are kept side by side, also committed at once", async () => {
  const store = await open();
  await Promise.all([addLayer(store), addLayer(store, alike), addLayer(store)]);
  const trees = [chainId, alike].map((id) => store.tree(id));
  expect(new Set(trees).size).toBe(2);
  for (const [index, tree] of trees.entries()) {
    expect(readdirSync(tree)).toEqual([[chainId, alike][index]!.slice(-4)]);
  }
  const again = await open();
  expect([chainId, alike].map((id) => again.tree(id))).toEqual(trees);
  // The name that one had is free again.
  disk.resolve();
  await again.collect(new Set(), (id) => id === alike);
  await addLayer(again);
  expect([chainId, alike].map((id) => readdirSync(again.tree(id))[0])).toEqual(["aaaa", "bbbb"]);
});
