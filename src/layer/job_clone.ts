// Clones a layer in the unpack helper: hard-links the tree of a layer with the same content, for use above
// other layers. Hard links are safe because nothing writes into a layer's tree.
import * as fs from "node:fs";
import type { UnpackedLayer } from "./job_unpack.ts";
import { readLayerManifest, type ManifestEntry } from "./layer_manifest.ts";
import { pathOf } from "./tar_fields.ts";
import { setFolderAttributes } from "./untar.ts";

export type CloneJob = {
  kind: "clone";
  /** Tree, layer manifest and tar-split of the existing layer; the tar-split may be missing. */
  from: string;
  fromListing: string;
  fromRecipe: string;
  /** Tree, layer manifest and tar-split to create. */
  folder: string;
  listing: string;
  recipe: string;
};

export type ClonedLayer = Pick<UnpackedLayer, "sizeBytes" | "inodes" | "implicit">;

export function cloneLayer(job: CloneJob): ClonedLayer {
  const { from, fromListing, folder, listing } = job;
  const entries = readLayerManifest(fromListing);
  const cloned: ClonedLayer = { sizeBytes: 0, inodes: 0, implicit: [] };
  const counted = new Set<ManifestEntry>();
  fs.mkdirSync(folder, 0o755);
  for (const [path, entry] of entries) {
    if (entry.kind === "implicit") cloned.implicit.push(path);
    if (entry.kind === "implicit" || entry.kind === "folder") {
      if (path !== "") fs.mkdirSync(pathOf(`${folder}/${path}`), 0o755);
      continue;
    }
    fs.linkSync(pathOf(`${from}/${path}`), pathOf(`${folder}/${path}`));
    if (!counted.has(entry)) cloned.sizeBytes += dataBytes(entry);
    counted.add(entry);
  }
  for (const [path, entry] of entries) setFolderAttributes(pathOf(`${folder}/${path}`), entry);
  fs.linkSync(fromListing, listing);
  if (fs.existsSync(job.fromRecipe)) fs.linkSync(job.fromRecipe, job.recipe);
  cloned.inodes = new Set(entries.values()).size;
  return cloned;
}

/** The content's size without holes. */
function dataBytes({ size, parts }: ManifestEntry): number {
  if (parts.length === 0) return size;
  return parts.reduce((sum, value, index) => sum + (index % 2 === 1 ? value : 0), 0);
}
