// Removes files and folders, as `rm -rf` does. All rooms use it instead of node:fs's recursive rm.
//
// Decision: the engine's own loops for ever, on a whole core, where a folder lists nothing and still cannot be removed.
// ext4 has such folders after a power loss, and a process that goes on creating files has the same effect. The tree is
// walked by open folders (/proc/self/fd/N/NAME), so that nobody can put a symlink into the path, and no path is too long.
import { randomBytes } from "node:crypto";
import { constants, readdirSync, rmdirSync, unlinkSync } from "node:fs";
import { readdir, rename, rmdir, unlink } from "node:fs/promises";
import { CriError, codeOf, errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";

/** Of emptying one folder, to which others may add files meanwhile. */
const roundsMax = 1000;
/** Folders below this are moved up first: each level keeps a descriptor open. */
const depthMax = 64;
/** Removed at once. */
const batch = 64;

const folderFlags = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;

type Path = string | Buffer;

/** top: where folders that are too deep go; path: for messages. */
type Folder = { at: Descriptor; top: Descriptor; depth: number; path: string };

/**
 * Removes a file, or a folder with all that is in it; that there is none is no error. What can be removed is gone also
 * after an error. @throws CriError with the path that stays and why.
 */
export async function removeTree(path: string): Promise<void> {
  const error = await unlinked(path);
  if (error === undefined) return;
  if (errnoOf(error) !== "EISDIR") throw stays(path, error);
  await withoutContent(path, path, async (at) => {
    await empty({ at, top: at, depth: 0, path });
  });
}

/** The same for small trees, without letting other calls run meanwhile. */
export function removeTreeNow(path: Path): void {
  removeNow(path, path.toString());
}

function removeNow(at: Path, path: string): void {
  try {
    return unlinkSync(at);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return;
    if (errnoOf(error) !== "EISDIR") throw stays(path, error);
  }
  for (let round = 1; ; round++) {
    try {
      using folder = Descriptor.open(at, folderFlags);
      emptyNow(folder, path);
      return rmdirSync(at);
    } catch (error) {
      if (errnoOf(error) === "ENOENT") return;
      if (errnoOf(error) !== "ENOTEMPTY" || round === roundsMax) throw stays(path, error);
    }
  }
}

/** @throws the first failure, after all others were tried. */
function emptyNow(folder: Descriptor, path: string): void {
  const failures: unknown[] = [];
  for (const name of readdirSync(inside(folder), { encoding: "buffer" })) {
    try {
      removeNow(inside(folder, name), `${path}/${name.toString()}`);
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0] as Error;
}

/** Empties the folder and removes it, again if files came meanwhile. */
async function withoutContent(
  at: Path,
  path: string,
  empty: (folder: Descriptor) => Promise<void>,
): Promise<void> {
  for (let round = 1; ; round++) {
    try {
      using folder = Descriptor.open(at, folderFlags);
      await empty(folder);
      return await rmdir(at);
    } catch (error) {
      if (errnoOf(error) === "ENOENT") return;
      if (errnoOf(error) !== "ENOTEMPTY" || round === roundsMax) throw stays(path, error);
    }
  }
}

/** Removes what the folder contains now. @throws the first failure, after all others were tried. */
async function empty(folder: Folder): Promise<void> {
  const names = await readdir(inside(folder.at), { encoding: "buffer" });
  const failures: unknown[] = [];
  for (let i = 0; i < names.length; i += batch) {
    const some = names.slice(i, i + batch);
    const errors = await Promise.all(some.map((name) => unlinked(inside(folder.at, name))));
    for (const [j, error] of errors.entries()) {
      if (error === undefined) continue;
      const name = some[j]!;
      const path = `${folder.path}/${name.toString()}`;
      if (errnoOf(error) !== "EISDIR") failures.push(stays(path, error));
      else await removeFolder(folder, name, path).catch((failure) => failures.push(failure));
    }
  }
  if (failures.length > 0) throw failures[0] as Error;
}

async function removeFolder(parent: Folder, name: Buffer, path: string): Promise<void> {
  const at = inside(parent.at, name);
  const { top, depth } = parent;
  if (depth >= depthMax) {
    // The top is listed again, since it is not empty now.
    const above = Buffer.from(`deep-${randomBytes(8).toString("hex")}`);
    return await rename(at, inside(top, above)).catch((error: unknown) => {
      throw stays(path, error);
    });
  }
  await withoutContent(at, path, (folder) => empty({ at: folder, top, depth: depth + 1, path }));
}

/** undefined: it is gone. */
async function unlinked(path: Path): Promise<unknown> {
  try {
    await unlink(path);
  } catch (error) {
    return errnoOf(error) === "ENOENT" ? undefined : error;
  }
}

function inside({ fd }: Descriptor, name?: Buffer): Buffer {
  const folder = Buffer.from(`/proc/self/fd/${fd}`);
  return name === undefined ? folder : Buffer.concat([folder, Buffer.from("/"), name]);
}

function stays(path: string, cause: unknown): unknown {
  if (cause instanceof CriError) return cause; // of something inside
  const hint =
    errnoOf(cause) === "ENOTEMPTY"
      ? ": it lists no entry and is not empty, so its file system is damaged (fsck mends it), or a process goes on creating files in it"
      : ` (${messageOf(cause)})`;
  return new CriError(codeOf(cause), `cannot remove ${path}${hint}`, { cause });
}
