// Removes files and folders, as `rm -rf` does. All rooms use it instead of node:fs's recursive rm.
//
// Decision: the engine's own rm loops for ever, at full CPU, on a folder that lists no entry and still cannot be
// removed. ext4 has such folders after a power loss, and a process that goes on creating files has the same effect.
// This one walks the tree by open folders (/proc/self/fd/N/NAME), so that nobody can put a symlink into the path, and
// no path is too long.
// Files that a privileged container has made immutable (chattr +i) are removed, too.
import { randomBytes } from "node:crypto";
import { constants, open, readdirSync, rmdirSync, unlinkSync } from "node:fs";
import { readdir, rename, rmdir, unlink } from "node:fs/promises";
import { promisify } from "node:util";
import { CriError, codeOf, errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";
import { clearImmutable } from "./immutable.ts";

/** Attempts at emptying one folder, to which others may add files meanwhile. */
const roundsMax = 1000;
/** Folders below this depth are moved up first: each level keeps a descriptor open. */
const depthMax = 64;
/** Entries that are removed concurrently. */
const batch = 64;

const openLater = promisify(open);
const folderFlags = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;

type Path = string | Buffer;

/** top: where folders that are too deep go; path: for messages. */
type Folder = { at: Descriptor; top: Descriptor; depth: number; path: string };

/**
 * Removes a file, or a folder with everything in it; a missing path is no error. An error leaves only what could not
 * be removed. @throws CriError with the path that stays and why.
 */
export async function removeTree(path: string): Promise<void> {
  const refusal = await unlinked(path);
  if (refusal === undefined) return;
  await removeFolder({ at: path, path, refusal });
}

/** The same for small trees, without letting other calls run meanwhile. */
export function removeTreeNow(path: Path): void {
  removeNow(path, path.toString());
}

function removeNow(at: Path, path: string): void {
  const refusal = unlinkedNow(at);
  if (refusal === undefined) return;
  for (let round = 1; ; round++) {
    try {
      using folder = openFolderNow({ at, path, refusal });
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

/** What unlink(2) refused: a folder, as a rule. */
type Refused = { at: Path; path: string; refusal: unknown };

/** Opens the folder in the thread pool: a disk that does not answer would block this thread. @throws notFolder()'s. */
async function openFolder(refused: Refused): Promise<Descriptor> {
  try {
    return new Descriptor(await openLater(refused.at, folderFlags));
  } catch (error) {
    throw notFolder(refused, error);
  }
}

function openFolderNow(refused: Refused): Descriptor {
  try {
    return Descriptor.open(refused.at, folderFlags);
  } catch (error) {
    throw notFolder(refused, error);
  }
}

/** Returns a CriError with the refusal if the path is no folder, else the error. */
function notFolder({ path, refusal }: Refused, error: unknown): unknown {
  return ["ENOTDIR", "ELOOP"].includes(errnoOf(error) ?? "") ? stays(path, refusal) : error;
}

/** Empties the folder and removes it, again if files came meanwhile. above: the folder that contains it. */
async function removeFolder(refused: Refused, above?: Folder): Promise<void> {
  const { path } = refused;
  const depth = above === undefined ? 0 : above.depth + 1;
  for (let round = 1; ; round++) {
    try {
      using at = await openFolder(refused);
      await empty({ at, top: above?.top ?? at, depth, path });
      return await rmdir(refused.at);
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
    const some = names.slice(i, i + batch).map((name) => ({
      at: inside(folder.at, name),
      path: `${folder.path}/${name.toString()}`,
    }));
    const refusals = await Promise.all(some.map(({ at }) => unlinked(at)));
    for (const [j, refusal] of refusals.entries()) {
      if (refusal === undefined) continue;
      const inner = { ...some[j]!, refusal };
      await removeInner(folder, inner).catch((failure: unknown) => failures.push(failure));
    }
  }
  if (failures.length > 0) throw failures[0] as Error;
}

async function removeInner(folder: Folder, inner: Refused): Promise<void> {
  if (folder.depth < depthMax) return await removeFolder(inner, folder);
  try {
    using _ = await openFolder(inner);
    // The top is listed again, since it is not empty now.
    const above = Buffer.from(`deep-${randomBytes(8).toString("hex")}`);
    await rename(inner.at, inside(folder.top, above));
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw stays(inner.path, error);
  }
}

/** Returns why the file stays; undefined: it is gone. mayClear: whether to clear its immutable attribute, once. */
async function unlinked(path: Path, mayClear = true): Promise<unknown> {
  try {
    return await unlink(path);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    return mayClear && wasImmutable(error, path) ? await unlinked(path, false) : error;
  }
}

function unlinkedNow(path: Path, mayClear = true): unknown {
  try {
    return unlinkSync(path);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    return mayClear && wasImmutable(error, path) ? unlinkedNow(path, false) : error;
  }
}

/**
 * Clears the attribute of a file that a container has made immutable; true if it had one. This is done for a folder,
 * too, before it is emptied: unlink(2) of an immutable folder fails with EPERM.
 */
function wasImmutable(error: unknown, path: Path): boolean {
  return errnoOf(error) === "EPERM" && clearImmutable(path);
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
