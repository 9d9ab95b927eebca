// From the digest that a name means to the one image of it that this machine runs: through an index,
// and through indexes in it (OCI image-spec, image-index.md).
// Decision: as in containerd, an entry that tells its platform comes before those that do not; of these
// the configs tell it, but an index of one image means that image.
import { CriError, type ErrorCode } from "../base/errors.ts";
import {
  parseConfig,
  parseManifest,
  type Descriptor,
  type ImageConfig,
  type Index,
  type Manifest,
} from "./manifest.ts";
import { bestFor, hostPlatform, type Platform } from "./platform.ts";

/** Both give bytes that were checked against their digest, and bounded. */
export type ManifestReader = {
  manifest(digest: string): Promise<Uint8Array>;
  config(config: Descriptor): Promise<Uint8Array>;
};

/** For one image: a chain of indexes, or entries that do not tell their platform. */
const readsMax = 32;

/** @throws CriError NOT_FOUND that lists what there is; what reader throws; NoImage. */
export async function imageFor(
  bytes: Uint8Array,
  what: string,
  reader: ManifestReader,
): Promise<Manifest> {
  return await new Choice(what, reader).imageIn(bytes, what);
}

/** Of an entry: another machine's image, no image, or one that is not here. */
const notForUs: ErrorCode[] = ["NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"];

type Found = { manifest: Manifest; platform: ImageConfig };

class Choice {
  readonly #what: string;
  readonly #reader: ManifestReader;
  readonly #platform: Platform = hostPlatform();
  #reads = 0;

  constructor(what: string, reader: ManifestReader) {
    this.#what = what;
    this.#reader = reader;
  }

  async imageIn(bytes: Uint8Array, where: string): Promise<Manifest> {
    const parsed = parseManifest(bytes, where);
    if (parsed.kind === "image") return parsed.manifest;
    const { manifests } = parsed.index;
    const named = bestFor(manifests, this.#platform, ({ platform }) => platform);
    const unnamed = manifests.filter(isUnnamed);
    const others = manifests.filter(isForOtherSystem).length;
    const only = unnamed.length === 1 && manifests.length - others === 1 ? unnamed[0] : undefined;
    const chosen = named ?? only;
    if (chosen !== undefined) return await this.#imageAt(chosen);
    return await this.#imageOf(parsed.index, unnamed);
  }

  async #imageAt({ digest }: Descriptor): Promise<Manifest> {
    return await this.imageIn(await this.#read(digest), `${this.#what} (${digest})`);
  }

  async #read(digest: string): Promise<Uint8Array> {
    if (this.#reads++ < readsMax) return await this.#reader.manifest(digest);
    const message = `${this.#what}: its image is behind more than ${readsMax} manifests: name it by its digest`;
    throw new CriError("RESOURCE_EXHAUSTED", message);
  }

  /** Of entries that do not tell what they are for, the one whose config does. */
  async #imageOf(index: Index, entries: Descriptor[]): Promise<Manifest> {
    const found: Found[] = [];
    let problem: CriError | undefined;
    for (const entry of entries) {
      try {
        const manifest = await this.#imageAt(entry);
        const config = await this.#reader.config(manifest.config);
        const { config: platform } = parseConfig(config, `${this.#what}: its config`);
        found.push({ manifest, platform });
      } catch (error) {
        if (!(error instanceof CriError) || !notForUs.includes(error.code)) throw error;
        problem ??= error;
      }
    }
    const best = bestFor(found, this.#platform, ({ platform }) => platform);
    if (best !== undefined) return best.manifest;
    const there = [...index.manifests, ...found]
      .map(({ platform: has }) => [has?.os, has?.architecture, has?.variant])
      .filter(([, architecture]) => architecture && architecture !== "unknown")
      .map((parts) => parts.filter(Boolean).join("/"));
    if (there.length === 0 && problem !== undefined) throw problem;
    const { architecture } = this.#platform;
    const message = `${this.#what} has no image for linux/${architecture}; it has ${there.join(", ") || "none"}`;
    throw new CriError("NOT_FOUND", message);
  }
}

function isUnnamed(entry: Descriptor): boolean {
  return !entry.platform?.architecture && !isForOtherSystem(entry);
}

function isForOtherSystem({ platform }: Descriptor): boolean {
  return (platform?.os || "linux").toLowerCase() !== "linux";
}
