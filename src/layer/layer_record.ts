// Defines a layer's record on disk, layers/SHORT.json (layer_store.ts describes the folder).
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { trustedJsonValue } from "../base/json.ts";
import { checked } from "../base/schema.ts";

const LayerRecord = v.object({
  version: v.literal(1),
  chainId: v.string(),
  diffId: v.string(),
  sizeBytes: v.number(),
  /** Absent in records of early builds. */
  inodes: v.optional(v.number()),
  /** The digest of the blob in SHORT.blob; absent: the blob was not kept. */
  blob: v.optional(v.string()),
  /** The tree marks removed names in the form that overlayfs does not understand (whiteouts.ts). */
  whiteouts: v.optional(v.literal("native")),
  /**
   * Absent: public, or of an earlier build. Else all pulls that brought it used credentials; repositories: those that it
   * may be reused for; digests: of its blobs.
   */
  restricted: v.optional(
    v.object({ repositories: v.array(v.string()), digests: v.array(v.string()) }),
  ),
  /** The boot during which it was unpacked; absent once it is synced to disk. */
  unsyncedBoot: v.optional(v.string()),
});
export type LayerRecord = v.InferOutput<typeof LayerRecord>;

/** @throws Error naming the invalid field. */
export function parseLayerRecord(text: string): LayerRecord {
  return checked(LayerRecord, trustedJsonValue(text));
}

/** True when a layer in the folder was unpacked by storage-driver native. */
export async function hasNativeLayer(folder: string): Promise<boolean> {
  for (const name of await readdir(folder)) {
    if (!name.endsWith(".json")) continue;
    try {
      const { whiteouts } = parseLayerRecord(await readFile(join(folder, name), "utf8"));
      if (whiteouts === "native") return true;
    } catch {
      // An invalid record proves nothing; LayerStore.open() logs it.
    }
  }
  return false;
}
