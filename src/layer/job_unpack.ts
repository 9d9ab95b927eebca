// Unpacks a layer in the unpack helper: downloads or reads its blob, decodes it, writes its tree, layer
// manifest and tar-split, and computes the digests of the bytes that were actually read.
import { createHash, type Hash } from "node:crypto";
import * as fs from "node:fs";
import { algorithmOf } from "../base/digest.ts";
import { CriError } from "../base/errors.ts";
import { readBlob } from "../registry/distribution.ts";
import { withoutMirrors } from "../registry/failover.ts";
import type { PullSession } from "../registry/pull_session.ts";
import { fileChunks, freeChunk } from "../sys/chunks.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import type { ChrootJail } from "./chroot_jail.ts";
import { ExpansionLimit } from "./expansion_limit.ts";
import { Inflate } from "./inflate.ts";
import { ByteProgress } from "./layer_progress.ts";
import { manifestBytesMax, writeLayerManifest, type ManifestEntry } from "./layer_manifest.ts";
import type { ProcessorChain } from "./processor_chain.ts";
import type { Decoding } from "./processor_choice.ts";
import { TarReader } from "./tar_reader.ts";
import { TarSplitWriter } from "./tar_split.ts";
import { Untar } from "./untar.ts";

export type LayerSource =
  | { kind: "registry"; session: PullSession }
  | { kind: "file"; path: string; offset: number };

export type LayerLimits = {
  /** Of the unpacked tar stream. */
  bytesMax: number;
  entriesMax: number;
  /** Nested folders above an entry. */
  depthMax: number;
  /** Unpacked bytes per packed byte. */
  ratioMax: number;
};

export type UnpackLayerJob = {
  kind: "unpack";
  /** An existing empty folder. */
  folder: string;
  source: LayerSource;
  /** Of the blob; "" when an archive does not state it. */
  digest: string;
  /** Absent when the manifest does not state it. */
  size?: number | null;
  diffId: string;
  decoding?: Decoding | undefined;
  limits: LayerLimits;
  /** The layer manifest (layer_manifest.ts), a file to create. */
  listing: string;
  /** The tar-split (tar_split.ts), a file to create. */
  recipe: string;
  /** A file to create for the blob; absent: the blob is not kept. */
  blob?: string | undefined;
};

export type UnpackedLayer = {
  /** Of the blob as it arrived. */
  digest: string;
  /** Of the tar stream inside. */
  diffId: string;
  /** Bytes of file content. */
  sizeBytes: number;
  /** Inodes of the tree including its root; hard links to one file count once. */
  inodes: number;
  /** Folders without an entry of their own; "" is the root. */
  implicit: string[];
};

export type UnpackResult = UnpackedLayer & {
  /** The URLs of the upstreams that the next layer of the pull should ask last. */
  failing: string[];
  /** Some of the trusted.* attributes that were left out. */
  trusted: string[];
};

/**
 * @throws CriError INVALID_ARGUMENT for content that no layer may have, RESOURCE_EXHAUSTED over a limit,
 * DATA_LOSS for data that does not decompress, is truncated or has another digest or diff ID.
 */
export async function unpackLayer(
  job: UnpackLayerJob,
  jail: ChrootJail,
  onProgress: (bytes: number) => void,
): Promise<UnpackResult> {
  // Opened before the chroot: these files are outside of it.
  using manifest = Descriptor.create(job.listing);
  using tarSplit = Descriptor.create(job.recipe);
  using blob = job.blob === undefined ? undefined : Descriptor.create(job.blob);
  await using processors = job.decoding && (await startProcessors(job.decoding));
  try {
    const source = keptAndReported(confinedChunks(job, jail), blob, onProgress);
    const { layer, entries, trusted } = await unpackStream(job, {
      source,
      tarSplit,
      processors,
      jail,
    });
    if (layer.diffId !== job.diffId) {
      const message = `layer ${job.digest} unpacks to ${layer.diffId}; its config says ${job.diffId}`;
      throw new CriError("DATA_LOSS", message);
    }
    writeLayerManifest(manifest, entries, manifestBytesMax(job.limits.entriesMax));
    return { ...layer, trusted, failing: failingIn(job.source) };
  } finally {
    jail.leave();
  }
}

/** Loads what few layers need, so that a helper for other layers starts sooner. */
async function startProcessors(decoding: Decoding): Promise<ProcessorChain> {
  return await (await import("./processor_chain.ts")).ProcessorChain.start(decoding);
}

function failingIn(source: LayerSource): string[] {
  if (source.kind === "file") return [];
  return source.session.upstreams.filter(({ isFailing }) => isFailing).map(({ url }) => url);
}

type UnpackStreams = {
  source: AsyncIterable<Uint8Array>;
  tarSplit: Descriptor;
  processors: ProcessorChain | undefined;
  jail: ChrootJail;
};

type Unpacked = {
  layer: UnpackedLayer;
  entries: Map<string, ManifestEntry>;
  trusted: string[];
};

/** Unpacks into "/" of the chroot that the source enters before it yields its first chunk. */
async function unpackStream(
  { digest: expected, diffId, limits, source: from }: UnpackLayerJob,
  { source, tarSplit: file, processors, jail }: UnpackStreams,
): Promise<Unpacked> {
  const hasMirrors = from.kind === "registry" && withoutMirrors(from.session) !== undefined;
  const packedHash = createHash(algorithmOf(expected));
  const plainHash = createHash(algorithmOf(diffId));
  const untar = new Untar(limits);
  const tarSplit = new TarSplitWriter(untar, file);
  const reader = new TarReader(tarSplit, limits);
  const expansion = new ExpansionLimit(limits);
  const inflate = new Inflate((chunk) => {
    jail.assertInside();
    expansion.addPlain(chunk.length);
    plainHash.update(chunk);
    tarSplit.pass(chunk, (bytes) => reader.push(bytes));
  });
  const packed = new PackedBytes(source, (chunk) => packedHash.update(chunk));
  async function* arriving(): AsyncGenerator<Uint8Array> {
    for await (const chunk of packed) {
      expansion.addPacked(chunk.length);
      yield chunk;
    }
  }
  try {
    const decoded = processors?.through(arriving()) ?? arriving();
    for await (const chunk of decoded) await inflate.push(chunk);
    await inflate.end();
  } catch (error) {
    // A digest mismatch explains the failure better: data that does not decode may be damaged in transit. Where a
    // mirror may have sent it, the rest is read, too: only the registry's own bytes decide about an image.
    if (hasMirrors) await packed.readRest();
    if (packed.haveArrived) checkedDigest(expected, packedHash);
    throw error;
  }
  const digest = checkedDigest(expected, packedHash);
  reader.end();
  jail.assertInside();
  untar.end();
  tarSplit.end();
  const layer = {
    digest,
    diffId: `${algorithmOf(diffId)}:${plainHash.digest("hex")}`,
    sizeBytes: untar.bytes,
    inodes: new Set(untar.entries.values()).size,
    implicit: untar.implicit,
  };
  return { layer, entries: untar.entries, trusted: [...untar.trusted] };
}

/** Yields a blob and frees what its reader has used; it can be read to its end also after its reader has failed. */
class PackedBytes implements AsyncIterable<Uint8Array> {
  readonly #chunks: AsyncIterator<Uint8Array>;
  readonly #onChunk: (chunk: Uint8Array) => void;
  #state: "arriving" | "arrived" | "failed" = "arriving";

  constructor(source: AsyncIterable<Uint8Array>, onChunk: (chunk: Uint8Array) => void) {
    this.#chunks = source[Symbol.asyncIterator]();
    this.#onChunk = onChunk;
  }

  get haveArrived(): boolean {
    return this.#state === "arrived";
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for (let chunk = await this.#next(); chunk !== undefined; chunk = await this.#next()) {
      yield chunk;
      freeChunk(chunk); // not after a failure, when the decompressor's thread may still read it
    }
  }

  /** Never throws. */
  async readRest(): Promise<void> {
    while (this.#state === "arriving") await this.#next().catch(() => {});
  }

  async #next(): Promise<Uint8Array | undefined> {
    try {
      const { done, value } = await this.#chunks.next();
      if (done === true) this.#state = "arrived";
      else this.#onChunk(value);
      return done === true ? undefined : value;
    } catch (error) {
      this.#state = "failed";
      throw error;
    }
  }
}

/** Returns the digest of the blob; "" accepts any. @throws CriError DATA_LOSS. */
function checkedDigest(expected: string, hash: Hash): string {
  const arrived = `${algorithmOf(expected)}:${hash.copy().digest("hex")}`;
  if (expected === "" || expected === arrived) return arrived;
  const message = `layer ${expected} arrived with digest ${arrived}: it was damaged at its source or in transit`;
  throw new CriError("DATA_LOSS", message);
}

/** Yields the blob; before the first chunk this process enters the chroot of the layer's folder. */
async function* confinedChunks(job: UnpackLayerJob, jail: ChrootJail): AsyncGenerator<Uint8Array> {
  const { source, size } = job;
  if (source.kind === "file") {
    using file = Descriptor.open(source.path, fs.constants.O_RDONLY);
    jail.enter(job.folder);
    yield* fileChunks(file, { start: source.offset, end: source.offset + (size ?? 0) });
    return;
  }
  jail.enter(job.folder);
  yield* readBlob(source.session, job, {
    signal: new AbortController().signal, // the daemon kills this process to cancel
    around: async (connect) => {
      // Name resolution and certificates need files outside of the chroot.
      jail.leave();
      try {
        return await connect();
      } finally {
        jail.enter(job.folder);
      }
    },
  });
}

/** Passes the blob on, keeps it in a file if one is given, and reports how much has been processed. */
async function* keptAndReported(
  source: AsyncIterable<Uint8Array>,
  blob: Descriptor | undefined,
  onProgress: (bytes: number) => void,
): AsyncGenerator<Uint8Array> {
  const progress = new ByteProgress(onProgress);
  for await (const chunk of source) {
    const { length } = chunk; // the consumer may free it
    if (blob !== undefined) writeAll(blob, chunk);
    yield chunk;
    progress.add(length);
  }
}
