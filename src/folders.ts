// Claims the daemon's folders: makes graph (persistent data) and state (runtime state), locks them against a
// second daemon, and marks graph as isulad-ts's. Refuses an unusable folder, unchanged, with path and remedy.
import { randomBytes } from "node:crypto";
import {
  chmodSync,
  constants,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import type { Config } from "./base/config.ts";
import { outputsFolder } from "./monitor_client/exec_output.ts";
import { CriError, errnoOf, isReadOnlyDisk, messageOf } from "./base/errors.ts";
import { jsonText, trustedJsonValue } from "./base/json.ts";
import { checked } from "./base/schema.ts";
import { netnsPrefix } from "./node/namespaces.ts";
import { podFilesFolder } from "./node/pod_files.ts";
import { readTextIfExists, writeFileAtomic } from "./sys/file.ts";
import { openLocked } from "./sys/path.ts";
import { removeTree } from "./sys/remove_tree.ts";

/** Marks a graph folder as isulad-ts's: holds its layout and its instance. */
const markFile = "isulad-ts.json";
const layoutKnown = 1;
/** Matches the remains of a first start that was cut off. */
const markBegun = /^isulad-ts\.json\.[0-9a-f]{8}\.tmp$/;
const lockFile = "daemon.lock";

/** The key of daemon.json that names a folder. */
type Key = "graph" | "state";

/** Makes, locks and checks the folders graph and state. Returns this daemon's instance. */
export async function claimFolders(config: Config, stack: AsyncDisposableStack): Promise<string> {
  for (const name of ["", "stdio", "sandboxes", podFilesFolder])
    makeFolder(join(config.state, name), "state");
  makeFolder(config.graph, "graph");
  stack.use(lockFolder(config.state, "state"));
  await refuseAlien(config.graph);
  stack.use(lockFolder(config.graph, "graph"));
  const instance = await claimGraph(config.graph);
  await removeTree(outputsFolder(config.graph)).catch(unlessReadOnly); // of a daemon that was killed
  try {
    closeFolder(config.graph, "graph");
  } catch (error) {
    unlessReadOnly(error);
  }
  closeFolder(config.state, "state");
  return instance;
}

/** On a disk that has become read-only, the daemon serves the pods that run; the health check says so. */
function unlessReadOnly(error: unknown): void {
  if (!isReadOnlyDisk(error)) throw error;
}

/** @throws CriError FAILED_PRECONDITION when it cannot be made. */
function makeFolder(path: string, key: Key): void {
  orUnwritable(path, key, () => mkdirSync(path, { recursive: true, mode: 0o700 }));
}

/**
 * Removes the permissions of others from a folder and its first two levels, which earlier builds left open:
 * files of containers, such as set-uid programs, must not be accessible to the node's users.
 * @throws CriError FAILED_PRECONDITION when one cannot be closed.
 */
function closeFolder(folder: string, key: Key): void {
  orUnwritable(folder, key, () => {
    close(folder, statSync(folder).mode); // /var/run is a symlink
    for (const path of contents(folder)) {
      const { mode, dev } = lstatSync(path);
      close(path, mode);
      if ((mode & S_IFMT) !== S_IFDIR) continue;
      for (const inner of contents(path)) {
        const found = lstatSync(inner);
        // A pod's network namespace is mounted there (netns-mounts-under-state-dir): its file is immutable.
        const isFolder = (found.mode & S_IFMT) === S_IFDIR; // a pod's small file system is mounted on one
        if (found.dev === dev || isFolder) close(inner, found.mode);
      }
    }
  });
}

const { S_IFMT, S_IFDIR, S_IFLNK } = constants;

function contents(folder: string): string[] {
  return readdirSync(folder).map((name) => join(folder, name));
}

function close(path: string, mode: number): void {
  if ((mode & 0o007) === 0 || (mode & S_IFMT) === S_IFLNK) return;
  chmodSync(path, mode & 0o700);
}

function orUnwritable<T>(path: string, key: Key, act: () => T): T {
  try {
    return act();
  } catch (error) {
    throw unwritable(path, key, error);
  }
}

function unwritable(path: string, key: Key, cause: unknown): CriError {
  const why = `${path} cannot be written (${messageOf(cause)})`;
  const next =
    errnoOf(cause) === "EROFS"
      ? `its file system is read-only: mount it read-write (after a disk error, see the kernel's log, run fsck first), or set "${key}" to another folder`
      : `correct that, or set "${key}" to another folder`;
  return new CriError("FAILED_PRECONDITION", `${why}: ${next}`, { cause });
}

/** Locks a folder for one daemon. @throws CriError FAILED_PRECONDITION if another daemon holds it. */
function lockFolder(folder: string, key: Key): Disposable {
  const path = join(folder, lockFile);
  const lock = orUnwritable(path, key, () => openLocked(path));
  if (lock !== undefined) return lock;
  throw new CriError(
    "FAILED_PRECONDITION",
    `another isulad-ts runs with ${folder} (it holds ${path}): stop it, or give this one hosts, graph and state of its own`,
  );
}

/**
 * Checks the folder, before even the lock file is created in it.
 * @throws CriError FAILED_PRECONDITION for a folder of another program, or of a newer version.
 */
async function refuseAlien(graph: string): Promise<void> {
  await readMark(graph);
}

/**
 * Returns the graph folder's instance, 8 hexadecimal digits, and makes it at the first start. The caller has
 * locked the folder, so that two first starts do not conflict.
 * @throws CriError FAILED_PRECONDITION as refuseAlien does, and where the mark cannot be written.
 */
async function claimGraph(graph: string): Promise<string> {
  const known = await readMark(graph);
  if (known !== undefined) return known;
  const path = join(graph, markFile);
  const instance = randomBytes(4).toString("hex");
  try {
    await writeFileAtomic(path, markText(instance), { mode: 0o600, fsync: true });
    const begun = readdirSync(graph).filter((name) => markBegun.test(name));
    for (const name of begun) await rm(join(graph, name), { force: true });
  } catch (error) {
    throw unwritable(path, "graph", error);
  }
  return instance;
}

const Mark = v.object({
  layout: v.number(),
  instance: v.pipe(v.string(), v.regex(/^[0-9a-f]{8}$/)),
});

function markText(instance: string): string {
  return `${jsonText({ layout: layoutKnown, instance })}\n`;
}

/** Reads the instance; undefined for an empty folder, which may be claimed. */
async function readMark(graph: string): Promise<string | undefined> {
  const path = join(graph, markFile);
  let mark: v.InferOutput<typeof Mark>;
  try {
    const text = await readTextIfExists(path);
    if (text === undefined) return refuseStrange(graph);
    mark = checked(Mark, trustedJsonValue(text));
  } catch (cause) {
    if (cause instanceof CriError) throw cause;
    throw new CriError(
      "FAILED_PRECONDITION",
      `${path}, which marks the graph folder, is damaged (${messageOf(cause)}): ${mending(graph)}, or use another graph folder`,
      { cause },
    );
  }
  if (mark.layout === layoutKnown) return mark.instance;
  throw new CriError(
    "FAILED_PRECONDITION",
    `${path} has layout ${mark.layout} of a newer isulad-ts: run that one, or use another graph folder`,
  );
}

/** A folder without a mark has to be empty. */
function refuseStrange(graph: string): undefined {
  const fresh = (name: string) => ["lost+found", lockFile].includes(name) || markBegun.test(name);
  const strange = readdirSync(graph).filter((name) => !fresh(name));
  if (strange.length === 0) return undefined;
  const some = strange.slice(0, 5).join(", ");
  const message = existsSync(join(graph, lockFile))
    ? `${join(graph, markFile)}, which marks the graph folder, is missing, though ${graph} holds files (${some}) and the lock of an isulad-ts: if the files are its own, ${mending(graph)}; else set graph to a folder of its own`
    : `${graph} holds files of another program (${some}): set graph to a folder of its own`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** Describes how to restore a lost mark: names of pods' namespaces contain the instance. */
function mending(graph: string): string {
  const instance = recordedInstance(graph);
  const text = markText(instance ?? "0badf00d").trim();
  const which =
    instance === undefined ? "any 8 hexadecimal digits do" : "its pods have this instance";
  return `restore it by: echo '${text}' > ${join(graph, markFile)} (${which})`;
}

function recordedInstance(graph: string): string | undefined {
  const known = new RegExp(netnsPrefix("([0-9a-f]{8})"));
  const folder = join(graph, "sandboxes");
  try {
    for (const id of readdirSync(folder)) {
      const found = known.exec(readFileSync(join(folder, id, "sandbox.json"), "utf8"));
      if (found !== null) return found[1];
    }
  } catch {
    // Best effort: the instance is only a hint.
  }
  return undefined;
}
