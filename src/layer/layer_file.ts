// A layer's record: layers/SHORT.json (layers.ts).
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { jsonValue } from "../base/json.ts";

const LayerFile = v.object({
  version: v.literal(1),
  chainId: v.string(),
  diffId: v.string(),
  sizeBytes: v.number(),
  /** Absent of layers that an earlier build unpacked. */
  inodes: v.optional(v.number()),
  /** Of the blob beside it, where one is kept. */
  blob: v.optional(v.string()),
  /** What its tree marks as removed is marked in a way that overlayfs does not know. */
  whiteouts: v.optional(v.literal("native")),
  /** The boot that made it, as long as it is not known to be on the disk. */
  unsyncedBoot: v.optional(v.string()),
});
export type LayerFile = v.InferOutput<typeof LayerFile>;

/** @throws what is wrong with it. */
export function parseLayerFile(text: string): LayerFile {
  return v.parse(LayerFile, jsonValue(text));
}

/** Whether a layer in the folder was unpacked for storage-driver native: only that driver leaves them. */
export async function hasNativeLayer(folder: string): Promise<boolean> {
  for (const name of await readdir(folder)) {
    if (!name.endsWith(".json")) continue;
    try {
      const { whiteouts } = parseLayerFile(await readFile(join(folder, name), "utf8"));
      if (whiteouts === "native") return true;
    } catch {
      // It is no evidence; LayerStore.open() tells of it.
    }
  }
  return false;
}
