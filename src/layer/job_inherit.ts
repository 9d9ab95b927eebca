// Gives implicit folders (folders without a tar entry) the attributes that they have in the layers below, in
// the unpack helper: otherwise a layer with tmp/x and no entry for tmp would make /tmp 0755, and without its ACL the
// mode of a folder would give its group what the ACL gives nobody.
import * as fs from "node:fs";
import { copyAttributes } from "./kept_attributes.ts";
import { pathOf } from "./tar_fields.ts";
import { isOpaque } from "./whiteouts.ts";

export type InheritJob = {
  kind: "inherit";
  /** The layer's tree. */
  folder: string;
  /** Trees of the layers below, nearest first. */
  lower: string[];
  /** Relative to the tree; "" is its root. */
  paths: string[];
};

export function inheritAttributes({ folder, lower, paths }: InheritJob): void {
  for (const path of paths) {
    const target = pathOf(`${folder}/${path}`);
    const found = isPlainFolder(folder, path) ? nearest(lower, path) : undefined;
    if (found === undefined) continue;
    const source = pathOf(found);
    const { uid, gid, mode, atime, mtime } = fs.lstatSync(source);
    fs.lchownSync(target, uid, gid);
    fs.chmodSync(target, mode & 0o7777);
    copyAttributes(source, target);
    fs.lutimesSync(target, atime, mtime);
  }
}

/** Finds the folder in the nearest layer below; a layer that hides the path ends the search. */
function nearest(lower: string[], path: string): string | undefined {
  for (const tree of lower) {
    if (isPlainFolder(tree, path)) return `${tree}/${path}`;
    if (isHidden(tree, path)) return undefined;
  }
  return undefined;
}

/** True when no component is a symlink: the target would lie outside of the layer. */
function isPlainFolder(tree: string, path: string): boolean {
  return prefixesOf(tree, path).every(
    (at) => fs.lstatSync(pathOf(at), { throwIfNoEntry: false })?.isDirectory() === true,
  );
}

function isHidden(tree: string, path: string): boolean {
  return prefixesOf(tree, path).some((at) => {
    const stat = fs.lstatSync(pathOf(at), { throwIfNoEntry: false });
    if (stat === undefined) return false;
    return !stat.isDirectory() || isOpaque(pathOf(at));
  });
}

function prefixesOf(tree: string, path: string): string[] {
  const prefixes = [tree];
  for (const part of path.split("/")) {
    if (part !== "") prefixes.push(`${prefixes.at(-1)}/${part}`);
  }
  return prefixes;
}
