// Tests the collection of layers of a fake store.
import { expect, test } from "bun:test";
import { LayerGc } from "../../../src/image/layer_gc.ts";
import type { ImageRecords } from "../../../src/image/records.ts";
import type { RootfsMounts } from "../../../src/image/rootfs_mounts.ts";
import type { LayerStore } from "../../../src/layer/layer_store.ts";

test("layers of images and of every running operation stay, all others are collected", async () => {
  let layers = ["of image", "held once", "held twice", "unused"];
  const store = {
    collect: async (_: Set<string>, isNeeded: (id: string) => boolean) => {
      layers = layers.filter(isNeeded);
    },
  } as unknown as LayerStore;
  const records = { list: () => [{ layers: ["of image"] }] } as unknown as ImageRecords;
  const mounts = { used: () => new Set<string>() } as unknown as RootfsMounts;
  const gc = new LayerGc({ layers: store, records, mounts });
  const outer = gc.hold(["held twice"]);
  {
    await using _ = gc.hold(["held once", "held twice"]);
    await gc.collect();
    expect(layers).toEqual(["of image", "held once", "held twice"]);
  }
  expect(layers).toEqual(["of image", "held twice"]);
  await outer[Symbol.asyncDispose]();
  expect(layers).toEqual(["of image"]);
});
