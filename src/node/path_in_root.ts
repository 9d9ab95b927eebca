// Resolves paths inside an image's root file system, which is hostile input: links never lead out of it, and the work
// for them is bounded.
import { lstatSync } from "node:fs";
import { lstat, readlink } from "node:fs/promises";
import { join, posix } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, errnoOf } from "../base/errors.ts";
import { Slices } from "../base/time_slices.ts";
import { readBounded } from "../sys/file.ts";

const linksMax = 40;
/** Components of the image's own paths and links that one lookup walks; those of a real image are some hundred. */
const stepsMax = 16_384;
/** Where each container has a file system of the runtime's. */
const systemFolders = ["dev", "proc", "sys"];

/**
 * Refuses a root in which a symlink stands for a folder that the runtime fills before it enters the root: runc before
 * 1.3.6 and 1.4.3 would follow it out of the root, and remove and create files of the node (CVE-2026-41579).
 * @throws CriError FAILED_PRECONDITION.
 */
export function refuseLinkedSystemFolders(root: string): void {
  for (const name of systemFolders) {
    const found = lstatSync(join(root, name), { throwIfNoEntry: false });
    if (found?.isSymbolicLink() !== true) continue;
    throw broken(`its /${name} is a symlink, where the runtime mounts a file system`);
  }
}

/**
 * Looks up paths in one root for one call. All paths together have one budget, and each file is looked up once: links
 * of 4 KiB, 40 in a row, behind each of 256 volumes would else take minutes. The tree must not change meanwhile.
 */
export class RootLookup {
  readonly #root: string;
  readonly #signal: AbortSignal;
  /** The target of a link; "" for other files; undefined where there is nothing. By path in the root. */
  readonly #known = new Map<string, string | undefined>();
  readonly #slices = new Slices();
  #steps = 0;

  constructor(root: string, signal: AbortSignal) {
    this.#root = root;
    this.#signal = signal;
  }

  /** Counts a path that the image names, as its links are counted. @throws CriError FAILED_PRECONDITION. */
  charge(path: string): string[] {
    const names = path.split("/");
    this.#steps += names.length;
    if (this.#steps <= stepsMax) return names;
    throw broken(`its volumes and symlinks lead along more than ${stepsMax} folders`);
  }

  /**
   * Follows all links, also those that lead to nothing, as a runtime does for a mount at this path. at: the path without
   * links, inside root; file: its host path, if it exists. undefined: there are too many links.
   * @throws CriError FAILED_PRECONDITION for an image that takes too long, CANCELLED or DEADLINE_EXCEEDED.
   */
  async follow(path: string): Promise<{ at: string; file: string | undefined } | undefined> {
    /** The next one last. */
    const todo = path.split("/").toReversed();
    let at = "/";
    let isMissing = false;
    for (let links = 0; todo.length > 0;) {
      throwIfAborted(`looking up ${this.#root}`, this.#signal);
      await this.#slices.pause();
      const name = todo.pop()!;
      if (name === "" || name === ".") continue;
      const next = posix.join(at, name); // ".." stops at "/"
      const target = name === ".." ? "" : await this.#targetOf(next);
      if (target === "" || target === undefined) {
        isMissing ||= target === undefined;
        at = next;
        continue;
      }
      if (++links > linksMax) return undefined;
      if (target.startsWith("/")) at = "/";
      for (const part of this.charge(target).toReversed()) todo.push(part);
    }
    return { at, file: isMissing ? undefined : join(this.#root, at) };
  }

  async #targetOf(path: string): Promise<string | undefined> {
    if (this.#known.has(path)) return this.#known.get(path);
    const target = await targetOf(join(this.#root, path));
    this.#known.set(path, target);
    return target;
  }

  /** Returns the host path of a file, or undefined. */
  async resolve(path: string): Promise<string | undefined> {
    return (await this.follow(path))?.file;
  }

  /**
   * Reads a file of the image as text; "" when it is missing or not a regular file.
   * @throws CriError FAILED_PRECONDITION when it is larger than maxBytes.
   */
  async read(path: string, maxBytes: number): Promise<string> {
    const real = await this.resolve(path);
    if (real === undefined || !(await lstat(real)).isFile()) return "";
    const bytes = readBounded(real, maxBytes + 1);
    if (bytes.length <= maxBytes) return new TextDecoder().decode(bytes);
    throw new CriError("FAILED_PRECONDITION", `${path} of the image is over ${maxBytes} bytes`);
  }

  /** Returns the host path of a directory. @throws CriError NOT_FOUND, or FAILED_PRECONDITION for another file. */
  async folder(path: string): Promise<string> {
    const real = await this.resolve(path);
    if (real === undefined) throw new CriError("NOT_FOUND", `the image has no ${path}`);
    if ((await lstat(real)).isDirectory()) return real;
    throw new CriError("FAILED_PRECONDITION", `${path} of the image is not a directory`);
  }
}

/** Returns the target of a link, "" for another file, undefined for none. */
async function targetOf(file: string): Promise<string | undefined> {
  try {
    return (await lstat(file)).isSymbolicLink() ? await readlink(file) : "";
  } catch (error) {
    const errno = errnoOf(error) ?? "";
    if (["ENOENT", "ENOTDIR"].includes(errno)) return undefined;
    if (errno === "ENAMETOOLONG") throw broken("a path in it is too long for the kernel");
    throw error;
  }
}

function broken(reason: string): CriError {
  return new CriError("FAILED_PRECONDITION", `cannot use the image: ${reason}`);
}
