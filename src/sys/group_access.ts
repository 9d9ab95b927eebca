// Lets groups traverse folders that are otherwise root's alone: a runtime in a user namespace reaches a
// container's root as the group that the namespace maps to 0.
import { chmodSync, chownSync } from "node:fs";
import { lsetxattr } from "./path.ts";

/** Lets one group traverse a folder. */
export function allowGroupTraversal(folder: string, gid: number): void {
  chownSync(folder, 0, gid);
  chmodSync(folder, 0o710);
}

/** Lets exactly these groups traverse a folder, by an access control list: a folder has one group of its own. */
export function allowGroupsTraversal(folder: string, gids: readonly number[]): void {
  if (gids.length === 0) chmodSync(folder, 0o700); // sets the mask of a list that remains: it admits nobody
  else lsetxattr(folder, "system.posix_acl_access", accessList(gids));
}

/** Builds linux/posix_acl_xattr.h's entries, in the order that the kernel requires. */
function accessList(gids: readonly number[]): Uint8Array {
  const [userOwner, groupOwner, group, mask, others] = [0x01, 0x04, 0x08, 0x10, 0x20];
  const [all, pass, none, noId] = [7, 1, 0, 0xffff_ffff];
  const entries: [tag: number, permissions: number, id: number][] = [
    [userOwner, all, noId],
    [groupOwner, none, noId],
    ...[...new Set(gids)]
      .toSorted((a, b) => a - b)
      .map((gid): [number, number, number] => [group, pass, gid]),
    [mask, pass, noId],
    [others, none, noId],
  ];
  const version = 2;
  const bytes = Buffer.alloc(4 + entries.length * 8);
  bytes.writeUInt32LE(version);
  for (const [index, [tag, permissions, id]] of entries.entries()) {
    const at = 4 + index * 8;
    bytes.writeUInt16LE(tag, at);
    bytes.writeUInt16LE(permissions, at + 2);
    bytes.writeUInt32LE(id, at + 4);
  }
  return bytes;
}
