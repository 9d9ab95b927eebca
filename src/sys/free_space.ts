// Tells whether a disk is full, after something has failed.
import { statfs } from "node:fs/promises";

/** A disk with less counts as full: it has some space left, because the failed write was rolled back. */
const [littleBytes, fewInodes] = [1 << 20, 64];

/** False if the folder's file system tells no sizes. */
export async function isAlmostFull(folder: string): Promise<boolean> {
  try {
    const { blocks, bavail, bsize, files, ffree } = await statfs(folder);
    return (blocks > 0 && bavail * bsize < littleBytes) || (files > 0 && ffree < fewInodes);
  } catch {
    return false; // the error that led here counts
  }
}
