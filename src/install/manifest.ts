// Records the files and folders that an installation has made, as lines of sha256sum(1), so that an uninstall
// removes only these, and of the files only those that nobody changed.
import { createHash } from "node:crypto";
import { chmodSync, lstatSync, mkdirSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { CriError, errnoOf } from "../base/errors.ts";
import { writeFileAtomic } from "../sys/file.ts";

export const manifestPath = "/usr/local/share/isulad-ts/installed";

/** Stands for the checksum of a folder. */
const folderMark = "folder";

export class Manifest {
  readonly #root: string;
  /** Path → checksums: two between the decision to replace a file and its replacement. */
  readonly #files = new Map<string, Set<string>>();
  readonly #folders = new Set<string>();

  /**
   * root: prefix of every path.
   * @throws CriError DATA_LOSS for a damaged record, FAILED_PRECONDITION for one outside of the root.
   */
  constructor(root: string) {
    this.#root = root;
    if (isThere(join(root, manifestPath))) this.#requireInside(dirname(manifestPath));
    const lines = readIfExists(join(root, manifestPath))?.toString("utf8").split("\n") ?? [];
    for (const [index, line] of lines.entries()) {
      if (line === "") continue;
      const [, mark = "", path = ""] = /^([0-9a-f]{64}|folder) {2}(\/.*)$/.exec(line) ?? [];
      if (path === "") {
        const where = `${join(root, manifestPath)}:${index + 1}`;
        const advice = "correct the line, or remove the file to keep everything that was installed";
        throw new CriError("DATA_LOSS", `${where} is no "CHECKSUM  PATH": ${advice}`);
      }
      if (mark === folderMark) this.#folders.add(path);
      else this.#marksOf(path).add(mark);
    }
  }

  /** Files in the order in which they were installed. */
  get files(): string[] {
    return [...this.#files.keys()];
  }

  /** Folders, the outer ones first. */
  get folders(): string[] {
    return [...this.#folders];
  }

  get isEmpty(): boolean {
    return this.#files.size === 0 && this.#folders.size === 0;
  }

  /** True for a file that was installed and has not been changed since. */
  isUnchanged(path: string): boolean {
    const marks = this.#files.get(path);
    const checksum = checksumOf(join(this.#root, path));
    return checksum !== undefined && marks?.has(checksum) === true;
  }

  /** Records what a file will be, before it is replaced: after a crash either content counts as installed. */
  async intend(path: string, checksum: string): Promise<void> {
    await this.makeFolders(dirname(path));
    this.#marksOf(path).add(checksum);
    await this.#save();
  }

  /** Records that a file was replaced. */
  async settle(path: string, checksum: string): Promise<void> {
    this.#files.set(path, new Set([checksum]));
    await this.#save();
  }

  async forget(path: string): Promise<void> {
    this.#files.delete(path);
    await this.#save();
  }

  /** Removes the record itself. */
  remove(): void {
    rmSync(join(this.#root, manifestPath), { force: true });
  }

  #marksOf(path: string): Set<string> {
    const marks = this.#files.get(path) ?? new Set();
    this.#files.set(path, marks);
    return marks;
  }

  /** Makes a folder and those around it; records each missing one before. */
  async makeFolders(path: string): Promise<void> {
    const missing: string[] = [];
    for (let folder = path; !isThere(join(this.#root, folder)); folder = dirname(folder)) {
      missing.unshift(folder);
    }
    this.#requireInside(missing.length === 0 ? path : dirname(missing[0]!));
    if (missing.length === 0) return;
    for (const folder of missing) this.#folders.add(folder);
    if (path !== dirname(manifestPath)) await this.#save();
    mkdirSync(join(this.#root, path), { recursive: true });
    for (const folder of missing) chmodSync(join(this.#root, folder), 0o755); // whatever the umask
  }

  #requireInside(folder: string): void {
    const problem = leadsOutside(this.#root, folder);
    if (problem !== undefined) throw new CriError("FAILED_PRECONDITION", problem);
  }

  async #save(): Promise<void> {
    await this.makeFolders(dirname(manifestPath));
    const files = [...this.#files].flatMap(([path, marks]) =>
      [...marks].map((mark) => `${mark}  ${path}\n`),
    );
    const folders = [...this.#folders].map((path) => `${folderMark}  ${path}\n`);
    const text = [...files, ...folders].join("");
    await writeFileAtomic(join(this.#root, manifestPath), text, { mode: 0o644, fsync: true });
  }
}

/** Returns the SHA-256 of a regular file; undefined for anything else. */
export function checksumOf(path: string): string | undefined {
  if (lstatSync(path, { throwIfNoEntry: false })?.isFile() !== true) return undefined;
  const bytes = readIfExists(path);
  return bytes === undefined ? undefined : sha256(bytes);
}

export function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/**
 * A link in an image, such as an absolute one, must not lead to this machine's files. Returns the problem if an
 * existing folder is not inside the root.
 */
export function leadsOutside(root: string, folder: string): string | undefined {
  if (root === "") return undefined;
  const real = realpathSync(join(root, folder));
  if (`${real}/`.startsWith(`${realpathSync(root)}/`)) return undefined;
  return `${join(root, folder)} is a link to ${real}, outside of ${root}`;
}

export function isThere(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false }) !== undefined;
}

function readIfExists(path: string): Buffer | undefined {
  try {
    return readFileSync(path);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}
