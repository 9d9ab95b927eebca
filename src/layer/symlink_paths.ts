// Resolves paths inside a layer by the layer's own symlinks, which are hostile input: the work is bounded.
import { CriError } from "../base/errors.ts";
import type { ManifestEntry } from "./layer_manifest.ts";

/** As the kernel's limit for one path. */
const symlinksMax = 40;
/**
 * Parts of all symlinks' targets that a layer makes follow: a chain of 40 long symlinks has 50,000, and any entry may
 * lead through it again, which would take hours for a layer that packs into a megabyte.
 */
const followedPartsMax = 10_000_000;

export class SymlinkPaths {
  readonly #entries: ReadonlyMap<string, ManifestEntry>;
  /** Symlinks that a path has led through. */
  readonly followed = new Set<string>();
  #parts = 0;

  /** entries: of the tree, by path without symlinks; it may change between calls. */
  constructor(entries: ReadonlyMap<string, ManifestEntry>) {
    this.#entries = entries;
  }

  /**
   * Returns the path without symlinks; undefined when it is not a folder of this layer.
   * @throws CriError RESOURCE_EXHAUSTED when the layer's symlinks are too much work.
   */
  folder(path: string): string | undefined {
    return this.#resolve(path, { mayMiss: false });
  }

  /** Like folder(), but also returns the path of a folder that this layer does not have. */
  target(path: string): string | undefined {
    return this.#resolve(path, { mayMiss: true });
  }

  #resolve(path: string, { mayMiss }: { mayMiss: boolean }): string | undefined {
    let at: string[] = [];
    const left = path.split("/").toReversed();
    for (let hops = 0; left.length > 0;) {
      const part = left.pop()!;
      if (part === "" || part === ".") continue;
      if (part === "..") {
        at.pop();
        continue;
      }
      const next = [...at, part].join("/");
      const existing = this.#entries.get(next);
      if (existing?.kind === "symlink") {
        if (++hops > symlinksMax) return undefined;
        this.followed.add(next);
        if (existing.target.startsWith("/")) at = [];
        left.push(...this.#counted(existing.target.split("/").toReversed()));
      } else if (isFolder(existing) || (mayMiss && isMissing(existing))) at.push(part);
      else return undefined;
    }
    return at.join("/");
  }

  #counted(parts: string[]): string[] {
    this.#parts += parts.length;
    if (this.#parts <= followedPartsMax) return parts;
    const message = `its path leads through a symlink, after over ${followedPartsMax} parts of symlinks were followed`;
    throw new CriError("RESOURCE_EXHAUSTED", message);
  }
}

function isMissing(entry: ManifestEntry | undefined): boolean {
  return entry === undefined || entry.kind === "whiteout";
}

export function isFolder(entry: ManifestEntry | undefined): boolean {
  return entry?.kind === "folder" || entry?.kind === "implicit";
}
