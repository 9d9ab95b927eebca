// Resolves an index, and indexes nested in it, to the manifest for this platform (OCI image-spec,
// image-index.md).
// Decision: as in containerd, an entry that states its platform is preferred. The platform of the other entries is
// read from their configs, except that the only entry of an index is used without reading its config. If no entry is
// for this machine's own architecture, one for another architecture that the machine runs is used.
import { isDigest } from "../base/digest.ts";
import { CriError, type ErrorCode } from "../base/errors.ts";
import { documentBounds } from "../base/json_bounds.ts";
import { clip } from "../base/text.ts";
import {
  assertVerifiable,
  NoImage,
  parseConfig,
  parseManifest,
  type Descriptor,
  type ImageConfig,
  type Manifest,
} from "./manifest.ts";
import { allFor, bestFor, hostPlatforms, isForLinux, requiredFeatures } from "./platform.ts";

/** Both return bytes that are verified against their digest, and bounded. */
type ManifestReader = {
  manifest(digest: string): Promise<Uint8Array>;
  config(config: Descriptor): Promise<Uint8Array>;
};

/** Bound nested indexes and entries without a platform. */
const readsMax = 32;
const bytesMax = 3 * documentBounds.bytesMax;

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
  platform: Descriptor["platform"] | (ImageConfig & { "os.features": string[] });
  manifest: () => Promise<Manifest>;
};

class Resolver {
  readonly #what: string;
  readonly #reader: ManifestReader;
  readonly #platforms = hostPlatforms();
  #reads = 0;
  #bytes = 0;

  constructor(what: string, reader: ManifestReader) {
    this.#what = what;
    this.#reader = reader;
  }

  async manifestIn(bytes: Uint8Array, where: string): Promise<Manifest> {
    const parsed = await parseManifest(bytes, where);
    if (parsed.kind === "image") return parsed.manifest;
    const { manifests } = parsed.index;
    /** Entries that state this machine's architecture, but are no images. */
    const unusable = new Map<Descriptor, NoImage>();
    const own = this.#platforms.slice(0, 1);
    for (const stated of allFor(likelyFirst(manifests), own, ({ platform }) => platform)) {
      try {
        return await this.#manifestAt(stated);
      } catch (error) {
        if (!(error instanceof NoImage)) throw error;
        unusable.set(stated, error);
      }
    }
    const unstated = manifests.filter(statesNoPlatform);
    const others = manifests.filter(({ platform }) => !isForLinux(platform)).length;
    const only = unstated.length === 1 && manifests.length - others === 1 ? unstated[0] : undefined;
    if (only !== undefined) return await this.#manifestAt(only);
    const left = manifests.filter((entry) => !unusable.has(entry));
    return await this.#byConfig(left, unstated, [...unusable.values()][0]);
  }

  /** @throws NoImage also for a digest of another algorithm. */
  async #manifestAt(entry: Descriptor): Promise<Manifest> {
    const { digest } = entry;
    assertVerifiable(entry, this.#what);
    return await this.manifestIn(await this.#read(digest), `${this.#what} (${digest})`);
  }

  async #read(digest: string): Promise<Uint8Array> {
    if (this.#reads++ < readsMax) return this.#counted(await this.#reader.manifest(digest));
    throw this.#exhausted(`more than ${readsMax} manifests lead to its image`);
  }

  /** The pull keeps what was read. */
  #counted(bytes: Uint8Array): Uint8Array {
    this.#bytes += bytes.length;
    if (this.#bytes <= bytesMax) return bytes;
    throw this.#exhausted(
      `the manifests and configs in its index take more than ${bytesMax} bytes`,
    );
  }

  #exhausted(reason: string): CriError {
    return new CriError("RESOURCE_EXHAUSTED", `${this.#what}: ${reason}: use the image's digest`);
  }

  /**
   * Chooses among all entries; an entry without a platform has the platform of its config. unusable: the reason why
   * another entry is not an image.
   */
  async #byConfig(
    entries: Descriptor[],
    unstated: Descriptor[],
    unusable: NoImage | undefined,
  ): Promise<Manifest> {
    const found: Candidate[] = entries.map((entry) => {
      return { platform: entry.platform, manifest: () => this.#manifestAt(entry) };
    });
    let problem: CriError | undefined;
    for (const entry of unstated) {
      try {
        const manifest = await this.#manifestAt(entry);
        const config = this.#counted(await this.#reader.config(manifest.config));
        const parsed = await parseConfig(config, `${this.#what}: its config`);
        const platform = { ...parsed.config, "os.features": parsed.osFeatures };
        found.push({ platform, manifest: async () => manifest });
      } catch (error) {
        if (!(error instanceof CriError) || !skippable.includes(error.code)) throw error;
        problem ??= error;
      }
    }
    const best = bestFor(found, this.#platforms, ({ platform }) => platform);
    if (best !== undefined) return await best.manifest();
    if (unusable !== undefined) throw unusable;
    const has = found
      .map(({ platform }) => shownPlatform(platform))
      .filter((shown) => shown !== "");
    if (has.length === 0 && problem !== undefined) throw problem;
    const { architecture } = this.#platforms[0]!;
    const message = `${this.#what} has no image for linux/${architecture}; it has ${has.join(", ") || "none"}`;
    throw new CriError("NOT_FOUND", message);
  }
}

/** Puts the entries last that are not likely to be images: artifacts, and those that cannot be verified. */
function likelyFirst(entries: Descriptor[]): Descriptor[] {
  const doubts = ({ digest, artifactType }: Descriptor) =>
    Number(!isDigest(digest)) * 2 + Number(artifactType !== "");
  return entries.toSorted((a, b) => doubts(a) - doubts(b));
}

function statesNoPlatform({ platform }: Descriptor): boolean {
  const isOpen = !platform?.architecture && requiredFeatures(platform).length === 0;
  return isOpen && isForLinux(platform);
}

/** How much of a text of an index a message shows. */
const shownBytesMax = 200;

/** Returns "" for an entry without a known architecture, such as an attestation. */
function shownPlatform(platform: Candidate["platform"]): string {
  const { os, architecture, variant } = platform ?? {};
  const features = requiredFeatures(platform);
  const needs = features.length === 0 ? "" : ` (needs the OS feature ${features.join(", ")})`;
  if (architecture === "unknown" || !(architecture || needs)) return "";
  return clip([os, architecture, variant].filter(Boolean).join("/") + needs, shownBytesMax);
}
