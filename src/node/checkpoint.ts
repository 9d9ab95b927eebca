// Checkpoints a running container: the OCI runtime writes criu's images, which go into a tar archive.
import { existsSync } from "node:fs";
import { copyFile, mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { CriError, codeOf, messageOf } from "../base/errors.ts";
import { failureOutput, run } from "../sys/run.ts";
import { removeTree } from "../sys/remove_tree.ts";

/** criu checks many kernel features, which takes a while on a busy node. */
const probeMs = 20_000;

export type CheckpointOptions = {
  /** Writes criu's images, and its log into the folder `work`. */
  dump: (folders: { images: string; work: string }) => Promise<void>;
  /** The bundle's config.json, which is added to the archive. */
  specFile: string;
  /** A temporary folder, created and removed. */
  scratch: string;
  /** A folder for criu's log and work files, which are kept; undefined: they are removed. */
  work: string | undefined;
  /** The absolute path of the archive, which must not exist. */
  location: string;
  signal: AbortSignal;
};

/**
 * Writes the archive: checkpoint/ with criu's images, and config.json. The container continues to run.
 * @throws CriError UNIMPLEMENTED when criu does not work, ALREADY_EXISTS when location exists, UNKNOWN with
 * the runtime's message, DEADLINE_EXCEEDED or CANCELLED; partial files are removed.
 */
export async function writeCheckpoint(options: CheckpointOptions): Promise<void> {
  const { scratch, location, signal } = options;
  await requireCriu(signal);
  if (existsSync(location)) {
    throw new CriError("ALREADY_EXISTS", `checkpoint location ${location} exists already`);
  }
  const images = join(scratch, "checkpoint");
  const partial = `${location}.partial`;
  try {
    await mkdir(images, { recursive: true, mode: 0o700 });
    const work = options.work ?? join(scratch, "work");
    await mkdir(work, { recursive: true, mode: 0o700 });
    await options.dump({ images, work });
    await copyFile(options.specFile, join(scratch, "config.json"));
    await archive(scratch, partial, signal);
    await rename(partial, location);
  } finally {
    await rm(partial, { force: true });
    await removeTree(scratch);
  }
}

async function requireCriu(signal: AbortSignal): Promise<void> {
  const problem = await criuProblem(AbortSignal.any([signal, AbortSignal.timeout(probeMs)]));
  if (problem === undefined) return;
  const message = `checkpoints need criu, which does not work on this node: ${problem}`;
  throw new CriError("UNIMPLEMENTED", message);
}

/** Returns the problem that `criu check` reports, or undefined. */
async function criuProblem(signal: AbortSignal): Promise<string | undefined> {
  try {
    const result = await run(["criu", "check"], { signal });
    return result.exitCode === 0 ? undefined : failureOutput(result);
  } catch (error) {
    if (codeOf(error) === "NOT_FOUND") return "it is not installed (package criu)";
    throw error;
  }
}

async function archive(folder: string, path: string, signal: AbortSignal): Promise<void> {
  const tar = ["tar", "--create", "--file", path, "--directory", folder];
  const argv = ["sh", "-c", 'umask 077; exec "$@"', "sh", ...tar, "checkpoint", "config.json"];
  const result = await run(argv, { signal }).catch((cause: unknown) => {
    throw new CriError(codeOf(cause), `writing ${path}: ${messageOf(cause)}`, { cause });
  });
  if (result.exitCode === 0) return;
  throw new CriError("FAILED_PRECONDITION", `cannot write ${path}: ${failureOutput(result)}`);
}
