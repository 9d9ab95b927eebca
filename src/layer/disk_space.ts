// Checks for free disk space before layers are written, and reports a full disk as RESOURCE_EXHAUSTED.
import { statfs } from "node:fs/promises";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";

/**
 * use: continues "no space left: …" and is followed by the number of bytes.
 * @throws CriError RESOURCE_EXHAUSTED when the folder's file system has fewer bytes free.
 */
export async function assertDiskSpace(folder: string, bytes: bigint, use: string): Promise<void> {
  const { blocks, bavail, bsize } = await statfs(folder, { bigint: true });
  if (blocks === 0n || bytes <= bavail * bsize) return; // 0 blocks: the file system reports no sizes
  const message = `no space left: ${use} ${bytes} bytes, and ${folder} has ${bavail * bsize} free`;
  throw new CriError("RESOURCE_EXHAUSTED", message);
}

/** Converts ENOSPC and EDQUOT to CriError RESOURCE_EXHAUSTED; returns any other error unchanged. */
export function asResourceExhausted(error: unknown): unknown {
  if (!["ENOSPC", "EDQUOT"].includes(errnoOf(error) ?? "")) return error;
  const message = `no space left on the disk of graph: ${messageOf(error)}; isulad-ts images prune removes unused images`;
  return new CriError("RESOURCE_EXHAUSTED", message, { cause: error });
}
