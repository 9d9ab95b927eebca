// One layer: bytes in, a folder out, with the digests of what was really read.
import { createHash, type Hash } from "node:crypto";
import { CriError } from "../base/errors.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { Inflate } from "./inflate.ts";
import type { Listed } from "./layer_manifest.ts";
import { algorithmOf } from "../base/digest.ts";
import { RecipeWriter } from "./tar_split.ts";
import { TarReader } from "./tar.ts";
import { Untar } from "./untar.ts";

export type UnpackedLayer = {
  /** Of the bytes as they came. */
  digest: string;
  /** Of the tar stream inside. */
  diffId: string;
  /** Bytes of file content. */
  sizeBytes: number;
  /** Files, folders and all else in the tree, its root too; several names of a file count once. */
  inodes: number;
  /** Folders that no entry described, "" for the root. */
  implicit: string[];
};

/** What one layer may be. */
export type LayerLimits = {
  /** Of the unpacked tar stream. */
  bytesMax: number;
  entriesMax: number;
  /** Folders on the way to an entry. */
  depthMax: number;
  /** Unpacked by packed bytes. */
  ratioMax: number;
};

export type LayerOptions = {
  /** sha256 or sha512 digests to learn the algorithms from. */
  digest: string;
  diffId: string;
  limits: LayerLimits;
  /** An empty file, open for writing, for the recipe (tar_split.ts). */
  recipe: Descriptor;
  /** What is to be done before the bytes can be unpacked. */
  decode?: ((source: AsyncIterable<Uint8Array>) => AsyncIterable<Uint8Array>) | undefined;
  /** Throws while this process is not confined to the layer's folder. */
  assertConfined: () => void;
};

/** So much may come of anything: a folder of zeros is no bomb. */
export const ratioFreeBytes = 256 << 20;

/**
 * Unpacks into "/" of the chroot that the source enters before its first chunk; also tells what it made.
 * @throws CriError INVALID_ARGUMENT for what no layer may hold, RESOURCE_EXHAUSTED over a limit,
 * DATA_LOSS for what does not decompress, is cut off or has another digest; the diff id is for the caller
 * to check.
 */
export async function unpackLayer(
  source: AsyncIterable<Uint8Array>,
  options: LayerOptions,
): Promise<{ layer: UnpackedLayer; entries: Map<string, Listed> }> {
  const packed = createHash(algorithmOf(options.digest));
  const plain = createHash(algorithmOf(options.diffId));
  const untar = new Untar(options.limits);
  const recipe = new RecipeWriter(untar, options.recipe);
  const reader = new TarReader(recipe, options.limits);
  const bounds = new Bounds(options.limits);
  const inflate = new Inflate((chunk) => {
    options.assertConfined();
    bounds.count(chunk.length);
    plain.update(chunk);
    recipe.pass(chunk, (bytes) => reader.push(bytes));
  });
  let hasArrived = false;
  const arriving = hashed(source, packed, bounds, () => (hasArrived = true));
  try {
    const decoded = options.decode?.(arriving) ?? arriving;
    for await (const chunk of decoded) await inflate.push(chunk);
    await inflate.end();
  } catch (error) {
    // What no program can decode may only have been damaged on its way.
    if (hasArrived) assertDigest(options.digest, packed);
    throw error;
  }
  const digest = assertDigest(options.digest, packed);
  reader.end();
  options.assertConfined();
  untar.end();
  recipe.end();
  const layer = {
    digest,
    diffId: `${algorithmOf(options.diffId)}:${plain.digest("hex")}`,
    sizeBytes: untar.bytes,
    inodes: new Set(untar.entries.values()).size,
    implicit: untar.implicit,
  };
  return { layer, entries: untar.entries };
}

/** Against layers that unpack to more than a node can hold. */
class Bounds {
  readonly #limits: LayerLimits;
  #plainBytes = 0;
  packedBytes = 0;

  constructor(limits: LayerLimits) {
    this.#limits = limits;
  }

  /** @throws CriError RESOURCE_EXHAUSTED. */
  count(bytes: number): void {
    const { bytesMax, ratioMax } = this.#limits;
    this.#plainBytes += bytes;
    if (this.#plainBytes > bytesMax) {
      const message = `it unpacks to more than ${bytesMax} bytes (layer-max-mib)`;
      throw new CriError("RESOURCE_EXHAUSTED", message);
    }
    if (this.#plainBytes <= Math.max(ratioFreeBytes, this.packedBytes * ratioMax)) return;
    const message = `${this.packedBytes} bytes of it unpack to ${this.#plainBytes}, over ${ratioMax} times as much (layer-max-ratio)`;
    throw new CriError("RESOURCE_EXHAUSTED", message);
  }
}

async function* hashed(
  source: AsyncIterable<Uint8Array>,
  hash: Hash,
  bounds: Bounds,
  onEnd: () => void,
): AsyncGenerator<Uint8Array> {
  for await (const chunk of source) {
    hash.update(chunk);
    bounds.packedBytes += chunk.length;
    yield chunk;
  }
  onEnd();
}

/** The digest that arrived; "" stands for any. @throws CriError DATA_LOSS. */
function assertDigest(digest: string, hash: Hash): string {
  const arrived = `${algorithmOf(digest)}:${hash.copy().digest("hex")}`;
  if (digest === "" || digest === arrived) return arrived;
  throw new CriError(
    "DATA_LOSS",
    `layer ${digest} arrived with digest ${arrived}: its source is damaged, or something between`,
  );
}
