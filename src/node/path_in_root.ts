// Resolves paths inside an image's root file system, which is hostile input: links never lead out of it.
import { lstatSync } from "node:fs";
import { lstat, readlink } from "node:fs/promises";
import { join, posix } from "node:path";
import { CriError, errnoOf } from "../base/errors.ts";
import { readBounded } from "../sys/file.ts";

const linksMax = 40;
/** Where each container has a file system of the runtime's. */
const systemFolders = ["dev", "proc", "sys"];

/**
 * Refuses a root in which a symlink stands for a folder that the runtime fills before it enters the root: runc before
 * 1.3.6 and 1.4.3 would follow it out of the root, and remove and create files of the node (CVE-2026-41579).
 * @throws CriError FAILED_PRECONDITION.
 */
export function refuseLinkedSystemFolders(root: string): void {
  for (const name of systemFolders) {
    const found = lstatSync(join(root, name), { throwIfNoEntry: false });
    if (found?.isSymbolicLink() !== true) continue;
    const message = `cannot use the image: its /${name} is a symlink, where the runtime mounts a file system`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
}

/**
 * Reads a file of an image as text; "" when it is missing or not a regular file.
 * @throws CriError FAILED_PRECONDITION when it is larger than maxBytes.
 */
export async function readInRoot(root: string, path: string, maxBytes: number): Promise<string> {
  const real = await resolveInRoot(root, path);
  if (real === undefined || !(await lstat(real)).isFile()) return "";
  const bytes = readBounded(real, maxBytes + 1);
  if (bytes.length > maxBytes) {
    throw new CriError("FAILED_PRECONDITION", `${path} of the image is over ${maxBytes} bytes`);
  }
  return new TextDecoder().decode(bytes);
}

/** Returns the host path of a file in root, or undefined. The tree must not change during the call. */
export async function resolveInRoot(root: string, path: string): Promise<string | undefined> {
  return (await followInRoot(root, path))?.file;
}

/**
 * Follows all links, also those that lead to nothing, as a runtime does for a mount at this path. at: the path without
 * links, inside root; file: its host path, if it exists. undefined: there are too many links.
 */
export async function followInRoot(
  root: string,
  path: string,
): Promise<{ at: string; file: string | undefined } | undefined> {
  let todo = path.split("/");
  let at = "/";
  let isMissing = false;
  for (let links = 0; todo.length > 0;) {
    const name = todo.shift()!;
    const next = posix.join(at, name); // ".." stops at "/"
    try {
      if ((await lstat(join(root, next))).isSymbolicLink()) {
        if (++links > linksMax) return undefined;
        const target = await readlink(join(root, next));
        if (target.startsWith("/")) at = "/";
        todo = [...target.split("/"), ...todo];
      } else {
        at = next;
      }
    } catch (error) {
      if (!["ENOENT", "ENOTDIR"].includes(errnoOf(error) ?? "")) throw error;
      isMissing = true;
      at = next;
    }
  }
  return { at, file: isMissing ? undefined : join(root, at) };
}

/**
 * Returns the host path of a directory in the root file system of a mounted image.
 * @throws CriError NOT_FOUND, or FAILED_PRECONDITION when it is not a directory.
 */
export async function folderInRoot(root: string, path: string): Promise<string> {
  const real = await resolveInRoot(root, path);
  if (real === undefined) throw new CriError("NOT_FOUND", `the image has no ${path}`);
  if ((await lstat(real)).isDirectory()) return real;
  throw new CriError("FAILED_PRECONDITION", `${path} of the image is not a directory`);
}
