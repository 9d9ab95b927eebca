// Resolves an index, and indexes nested in it, to the manifest for this platform (OCI image-spec,
// image-index.md).
// Decision: as in containerd, an entry that states its platform is preferred. The platform of the other entries is
// read from their configs, except that the only entry of an index is used without reading its config. If no entry is
// for this machine's own architecture, one for another architecture that the machine runs is used.
import { CriError, type ErrorCode } from "../base/errors.ts";
import {
  parseConfig,
  parseManifest,
  type Descriptor,
  type ImageConfig,
  type Index,
  type Manifest,
} from "./manifest.ts";
import { bestFor, hostPlatforms } from "./platform.ts";

/** Both return bytes that are verified against their digest, and bounded. */
type ManifestReader = {
  manifest(digest: string): Promise<Uint8Array>;
  config(config: Descriptor): Promise<Uint8Array>;
};

/** Bounds nested indexes and entries without a platform. */
const readsMax = 32;

/** @throws CriError NOT_FOUND listing the platforms found; NoImage; errors of the reader. */
export async function platformManifest(
  bytes: Uint8Array,
  what: string,
  reader: ManifestReader,
): Promise<Manifest> {
  return await new Resolver(what, reader).manifestIn(bytes, what);
}

/** An entry's image is missing, is for another platform, or is not an image: try the next. */
const skippable: ErrorCode[] = ["NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"];

type Candidate = {
  platform: ImageConfig | Descriptor["platform"];
  manifest: () => Promise<Manifest>;
};

class Resolver {
  readonly #what: string;
  readonly #reader: ManifestReader;
  readonly #platforms = hostPlatforms();
  #reads = 0;

  constructor(what: string, reader: ManifestReader) {
    this.#what = what;
    this.#reader = reader;
  }

  async manifestIn(bytes: Uint8Array, where: string): Promise<Manifest> {
    const parsed = parseManifest(bytes, where);
    if (parsed.kind === "image") return parsed.manifest;
    const { manifests } = parsed.index;
    const stated = bestFor(manifests, this.#platforms.slice(0, 1), ({ platform }) => platform);
    const unstated = manifests.filter(statesNoPlatform);
    const others = manifests.filter(isForOtherSystem).length;
    const only = unstated.length === 1 && manifests.length - others === 1 ? unstated[0] : undefined;
    const chosen = stated ?? only;
    if (chosen !== undefined) return await this.#manifestAt(chosen);
    return await this.#byConfig(parsed.index, unstated);
  }

  async #manifestAt({ digest }: Descriptor): Promise<Manifest> {
    return await this.manifestIn(await this.#read(digest), `${this.#what} (${digest})`);
  }

  async #read(digest: string): Promise<Uint8Array> {
    if (this.#reads++ < readsMax) return await this.#reader.manifest(digest);
    const message = `${this.#what}: more than ${readsMax} manifests lead to its image: use the image's digest`;
    throw new CriError("RESOURCE_EXHAUSTED", message);
  }

  /** Chooses among all entries; those without a platform have that of their configs. */
  async #byConfig(index: Index, entries: Descriptor[]): Promise<Manifest> {
    const found: Candidate[] = index.manifests.map((entry) => {
      return { platform: entry.platform, manifest: () => this.#manifestAt(entry) };
    });
    let problem: CriError | undefined;
    for (const entry of entries) {
      try {
        const manifest = await this.#manifestAt(entry);
        const config = await this.#reader.config(manifest.config);
        const { config: platform } = parseConfig(config, `${this.#what}: its config`);
        found.push({ platform, manifest: async () => manifest });
      } catch (error) {
        if (!(error instanceof CriError) || !skippable.includes(error.code)) throw error;
        problem ??= error;
      }
    }
    const best = bestFor(found, this.#platforms, ({ platform }) => platform);
    if (best !== undefined) return await best.manifest();
    const platforms = found
      .map(({ platform: has }) => [has?.os, has?.architecture, has?.variant])
      .filter(([, architecture]) => architecture && architecture !== "unknown")
      .map((parts) => parts.filter(Boolean).join("/"));
    if (platforms.length === 0 && problem !== undefined) throw problem;
    const { architecture } = this.#platforms[0]!;
    const message = `${this.#what} has no image for linux/${architecture}; it has ${platforms.join(", ") || "none"}`;
    throw new CriError("NOT_FOUND", message);
  }
}

function statesNoPlatform(entry: Descriptor): boolean {
  return !entry.platform?.architecture && !isForOtherSystem(entry);
}

function isForOtherSystem({ platform }: Descriptor): boolean {
  return (platform?.os || "linux").toLowerCase() !== "linux";
}
