// A layer that is there already, once more above other layers: the same files under further names.
// Nobody writes into a layer's tree, so they can be hard links.
import * as fs from "node:fs";
import type { UnpackedLayer } from "./layer.ts";
import { type Listed, readListing } from "./layer_manifest.ts";
import { pathOf } from "./tar_fields.ts";
import { describeFolder } from "./untar.ts";

export type CloneJob = {
  kind: "clone";
  /** Tree and listing of the one that is there. */
  from: string;
  fromListing: string;
  /** There or not. */
  fromRecipe: string;
  /** A folder and files to be made. */
  folder: string;
  listing: string;
  recipe: string;
};

export type Cloned = Pick<UnpackedLayer, "sizeBytes" | "inodes" | "implicit">;

export function clone(job: CloneJob): Cloned {
  const { from, fromListing, folder, listing } = job;
  const entries = readListing(fromListing);
  const cloned: Cloned = { sizeBytes: 0, inodes: 0, implicit: [] };
  const counted = new Set<Listed>();
  fs.mkdirSync(folder, 0o755);
  for (const [path, listed] of entries) {
    if (listed.kind === "implicit") cloned.implicit.push(path);
    if (listed.kind === "implicit" || listed.kind === "folder") {
      if (path !== "") fs.mkdirSync(pathOf(`${folder}/${path}`), 0o755);
      continue;
    }
    fs.linkSync(pathOf(`${from}/${path}`), pathOf(`${folder}/${path}`));
    if (!counted.has(listed)) cloned.sizeBytes += bytesOf(listed);
    counted.add(listed);
  }
  for (const [path, listed] of entries) describeFolder(pathOf(`${folder}/${path}`), listed);
  fs.linkSync(fromListing, listing);
  if (fs.existsSync(job.fromRecipe)) fs.linkSync(job.fromRecipe, job.recipe);
  cloned.inodes = new Set(entries.values()).size;
  return cloned;
}

/** Content, without holes. */
function bytesOf({ size, parts }: Listed): number {
  if (parts.length === 0) return size;
  return parts.reduce((sum, value, index) => sum + (index % 2 === 1 ? value : 0), 0);
}
