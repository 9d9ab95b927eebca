// What a folder tree holds, file by file, for comparing two of them.
import { createHash } from "node:crypto";
import { lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { lgetxattr } from "../src/sys/path.ts";

const xattrs = ["user.test", "security.capability"];

/**
 * A line for each entry: type and mode, owner, time, device, content, and who shares its inode. Times
 * of folders are left out: what is put into them changes those.
 */
export function listTree(root: string): string[] {
  const inodes = new Map<bigint, string>();
  const names = ["", ...readdirSync(root, { recursive: true, encoding: "utf8" }).sort()];
  return names.map((name) => {
    const path = join(root, name);
    const found = lstatSync(path, { bigint: true });
    const first = inodes.get(found.ino) ?? name;
    inodes.set(found.ino, first);
    const isFolder = found.isDirectory();
    const content = found.isSymbolicLink()
      ? `→ ${readlinkSync(path)}`
      : found.isFile()
        ? createHash("sha256").update(readFileSync(path)).digest("hex")
        : `device ${found.rdev}`;
    const more = xattrs.map((xattr) => Buffer.from(lgetxattr(path, xattr) ?? "").toString("hex"));
    return [
      name,
      found.mode.toString(8),
      `${found.uid}:${found.gid}`,
      isFolder ? "" : found.mtimeMs / 1000n,
      isFolder ? "folder" : `${content} = ${first}`,
      ...more,
    ].join(" ");
  });
}
