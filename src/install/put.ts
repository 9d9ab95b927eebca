// Writes the files of an installation, and removes them again.
import { chmodSync, rmdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { cniListsBeside, type InstalledFile } from "./files.ts";
import { checksumOf, isThere, leadsOutside, type Manifest, sha256 } from "./manifest.ts";
import { act, type Target } from "./target.ts";

/**
 * Writes a file unless somebody else has written or changed it. A running program keeps its old file.
 * @returns true if the file is the installation's. @throws CriError INTERNAL with the path.
 */
export async function put(
  target: Target,
  manifest: Manifest,
  file: InstalledFile,
): Promise<boolean> {
  try {
    const kept = reasonToKeep(target, manifest, file);
    if (kept !== undefined) target.report(kept);
    else await write(target, manifest, file);
    return kept === undefined;
  } catch (cause) {
    const path = join(target.root, file.path);
    const message = `cannot write ${path}: ${messageOf(cause)}; correct this and run the same again`;
    throw new CriError("INTERNAL", message, { cause });
  }
}

function reasonToKeep(
  { root }: Target,
  manifest: Manifest,
  { path, when }: InstalledFile,
): string | undefined {
  if (isThere(join(root, path))) {
    if (when === "always" || manifest.isUnchanged(path)) return undefined;
    return `keep ${path}, which was not installed by isulad-ts or was changed since`;
  }
  if (when !== "alone") return undefined;
  const [other] = cniListsBeside(root, path);
  return other && `keep the pod network of ${other}; ${path} is not needed`;
}

async function write(
  target: Target,
  manifest: Manifest,
  { path, content, mode }: InstalledFile,
): Promise<void> {
  const full = join(target.root, path);
  const checksum = sha256(Buffer.from(content as Uint8Array));
  const old = checksumOf(full);
  if (old === checksum && manifest.isUnchanged(path)) return;
  await act(target, `${old === undefined ? "write" : "replace"} ${path}`, async () => {
    await manifest.intend(path, checksum);
    await writeFileAtomic(full, content, { mode, fsync: true });
    chmodSync(full, mode); // whatever the umask
    await manifest.settle(path, checksum);
  });
}

/** Removes an installed file unless it was changed. */
export async function takeBack(target: Target, manifest: Manifest, path: string): Promise<void> {
  const full = join(target.root, path);
  if (!isThere(full)) return;
  const problem = leadsOutside(target.root, dirname(path));
  if (problem !== undefined) return target.report(`keep ${path}: ${problem}`);
  if (!manifest.isUnchanged(path)) {
    target.report(`keep ${path}, which was changed since its installation`);
    return;
  }
  await act(target, `remove ${path}`, () => rmSync(full));
}

/** Removes the folders that the installation has made and nobody uses. */
export function removeFolders({ root, isDryRun }: Target, manifest: Manifest): void {
  if (isDryRun) return;
  for (const folder of manifest.folders.toReversed()) {
    const path = join(root, folder);
    if (!isThere(path) || leadsOutside(root, dirname(folder)) !== undefined) continue;
    try {
      rmdirSync(path);
    } catch (error) {
      // In use, or somebody has replaced it by a link or mounted something there: then it stays.
      const kept = ["ENOENT", "ENOTEMPTY", "ENOTDIR", "EBUSY"];
      if (!kept.includes(errnoOf(error) ?? "")) throw error;
    }
  }
}
