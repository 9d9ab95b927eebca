// Checks for free disk space before layers are written, and names the disk that is full in a failure.
import { statfs } from "node:fs/promises";
import { byteText } from "../base/byte_text.ts";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { isAlmostFull } from "../sys/free_space.ts";

/**
 * use: continues "no space left on the disk of graph: …" and is followed by the size.
 * @throws CriError RESOURCE_EXHAUSTED when the folder's file system has fewer bytes free.
 */
export async function assertDiskSpace(folder: string, bytes: bigint, use: string): Promise<void> {
  const { blocks, bavail, bsize } = await statfs(folder, { bigint: true });
  if (blocks === 0n || bytes <= bavail * bsize) return; // 0 blocks: the file system reports no sizes
  const free = byteText(bavail * bsize);
  const message = `no space left on the disk of graph: ${use} ${byteText(bytes)}, and ${folder} has ${free} free; ${mends.graph}`;
  throw new CriError("RESOURCE_EXHAUSTED", message);
}

/** Converts ENOSPC and EDQUOT to CriError RESOURCE_EXHAUSTED; returns any other error unchanged. */
export function asResourceExhausted(error: unknown): unknown {
  if (!["ENOSPC", "EDQUOT"].includes(errnoOf(error) ?? "")) return error;
  const message = `no space left on the disk of graph: ${messageOf(error)}; ${mends.graph}`;
  return new CriError("RESOURCE_EXHAUSTED", message, { cause: error });
}

const mends = {
  graph: "isulad-ts images prune removes unused images",
  state: "see what fills it, or make it larger",
};

/**
 * Returns a CriError RESOURCE_EXHAUSTED that names the full disk and how to free space, or the error unchanged if no
 * disk is full: inotify and cgroups fail with ENOSPC, too.
 */
export async function withFullDisk(
  error: unknown,
  folders: { graph: string; state: string },
  isFull: (folder: string) => Promise<boolean> = isAlmostFull,
): Promise<unknown> {
  const message = messageOf(error);
  if (!/\bENOSPC\b|no space left/i.test(message)) return error;
  if (message.includes("no space left on the disk of")) return error;
  for (const name of ["graph", "state"] as const) {
    if (!(await isFull(folders[name]))) continue;
    const why = `no space left on the disk of ${name} (${folders[name]}): ${message}; ${mends[name]}`;
    return new CriError("RESOURCE_EXHAUSTED", why, { cause: error });
  }
  return error;
}
