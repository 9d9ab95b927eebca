// Describes folder trees line by line, so that two of them can be compared.
import { createHash } from "node:crypto";
import { lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { lgetxattr } from "../src/sys/path.ts";

const xattrs = ["user.test", "security.capability"];

/**
 * Returns a line per entry: type and mode, owner, time, device, content, and hard links. Folders' times are
 * omitted, since new entries change them.
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
