// Whether a file system has room, asked before much work is done for nothing.
import { statfs } from "node:fs/promises";
import { CriError } from "../base/errors.ts";

/**
 * what: completes "no space left: …", with the bytes behind it.
 * @throws CriError RESOURCE_EXHAUSTED when the folder's file system surely has no room for so many bytes.
 */
export async function assertRoom(folder: string, bytes: bigint, what: string): Promise<void> {
  const { blocks, bavail, bsize } = await statfs(folder, { bigint: true });
  if (blocks === 0n || bytes <= bavail * bsize) return; // 0: it does not tell
  const message = `no space left: ${what} ${bytes} bytes, and ${folder} has ${bavail * bsize} free`;
  throw new CriError("RESOURCE_EXHAUSTED", message);
}
