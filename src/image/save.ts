// Saves images as an OCI archive that `load`, docker, podman and skopeo read.
// Decision: the archive holds layers as uncompressed tar streams under their diff ids. So config and id do
// not change, the same images give the same bytes, and images share layers. The manifest is new, because the
// registry's compressed layers cannot be reproduced: names by digest (app@sha256:…) are lost. The extension
// of the file chooses its compression.
import { existsSync } from "node:fs";
import * as fs from "node:fs/promises";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { temporaryFor } from "../sys/file.ts";
import { blobName } from "./archive.ts";
import type { UnpackPool } from "../layer/unpack_pool.ts";
import type { LayerStore } from "../layer/layer_store.ts";
import { digestOf } from "../base/digest.ts";
import type { PackEntry, PackJob, PackedLayer } from "../layer/job_pack.ts";
import { ProgressTracker, type OnProgress } from "../layer/layer_progress.ts";
import type { ImageRecord, ImageRecords } from "./records.ts";
import { nameOrNone } from "../registry/reference.ts";

/** names: full form, with tag. */
export type SavedImage = {
  record: ImageRecord;
  names: string[];
  config: string;
  layers: PackedLayer[];
};

type SaveOptions = {
  path: string;
  /** Replaces an existing file. */
  force: boolean;
  helpers: UnpackPool;
  signal: AbortSignal;
  onProgress: OnProgress;
};

const types = {
  index: "application/vnd.oci.image.index.v1+json",
  manifest: "application/vnd.oci.image.manifest.v1+json",
  config: "application/vnd.oci.image.config.v1+json",
  layer: "application/vnd.oci.image.layer.v1.tar",
} as const;

/** Leaves no file on failure. @throws CriError ALREADY_EXISTS, or FAILED_PRECONDITION for other errors. */
export async function writeArchive(images: SavedImage[], o: SaveOptions): Promise<void> {
  const { path, force, signal } = o;
  const temporary = temporaryFor(path);
  const entries = archiveEntries(images);
  try {
    if (!force && existsSync(path)) refuse(path);
    await fs.writeFile(temporary, "", { flag: "wx", mode: 0o600 });
    const compression = compressionOf(path);
    const job = { kind: "pack", path: temporary, compression, entries } as const;
    await o.helpers.run(job, { signal, onBytes: progressOf(images, entries, o.onProgress) });
    // Claimed by an empty file: FAT has no hard links.
    if (!force) await fs.writeFile(path, "", { flag: "wx", mode: 0o600 });
    await fs.rename(temporary, path);
  } catch (error) {
    if (errnoOf(error) === "EEXIST") refuse(path);
    if (error instanceof CriError) throw error;
    const message = `cannot write ${path} on the daemon's host: ${messageOf(error)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  } finally {
    await fs.rm(temporary, { force: true });
  }
}

function refuse(path: string): never {
  throw new CriError("ALREADY_EXISTS", `${path} exists: --force replaces it`);
}

function compressionOf(path: string): PackJob["compression"] {
  if (/\.(gz|tgz)$/.test(path)) return "gzip";
  return /\.(zst|tzst)$/.test(path) ? "zstd" : "none";
}

/** Assigns the bytes written to the layers in archive order. */
function progressOf(images: SavedImage[], entries: PackEntry[], onProgress: OnProgress) {
  const layers = entries.flatMap(({ content }) => ("layer" in content ? [content.layer] : []));
  const shown = layers.map((layer) => ({ digest: layer.diffId, totalBytes: layer.streamBytes }));
  const { record, names } = images[0]!;
  const tracker = new ProgressTracker(names[0] ?? record.id, shown, onProgress);
  return (bytes: number) => {
    let before = 0;
    for (const [index, { streamBytes }] of layers.entries()) {
      const own = Math.min(streamBytes, bytes - before);
      if (own <= 0) return;
      tracker.set(index, own === streamBytes ? "done" : "moving", own);
      before += streamBytes;
    }
  };
}

/** Lists the archive's entries: the small ones first, then each layer once. */
function archiveEntries(images: SavedImage[]): PackEntry[] {
  const texts = new Map<string, string>([["oci-layout", '{"imageLayoutVersion":"1.0.0"}']]);
  const layers = new Map<string, PackedLayer>();
  const descriptors: object[] = [];
  for (const { record, names, config, layers: own } of images) {
    const manifest = jsonText({
      schemaVersion: 2,
      mediaType: types.manifest,
      config: { mediaType: types.config, digest: record.id, size: Buffer.byteLength(config) },
      layers: own.map(({ diffId: digest, streamBytes: size }) => {
        return { mediaType: types.layer, digest, size };
      }),
    });
    const digest = digestOf(Buffer.from(manifest));
    texts.set(blobName(digest), manifest);
    texts.set(blobName(record.id), config);
    for (const layer of own) layers.set(blobName(layer.diffId), layer);
    const { architecture, os, variant } = record.config;
    const platform = { architecture, os, ...(variant ? { variant } : {}) };
    const size = Buffer.byteLength(manifest);
    const descriptor = { mediaType: types.manifest, digest, size, platform };
    const named = names.map((name) => ({ ...descriptor, annotations: annotationsOf(name) }));
    descriptors.push(...(named.length > 0 ? named : [descriptor]));
  }
  const index = { schemaVersion: 2, mediaType: types.index, manifests: descriptors };
  texts.set("index.json", jsonText(index));
  texts.set("manifest.json", dockerManifest(images));
  return [
    ...[...texts].map(([name, text]) => ({ name, content: { text } })),
    ...[...layers].map(([name, layer]) => ({ name, content: { layer } })),
  ];
}

function annotationsOf(name: string): Record<string, string> {
  return {
    "io.containerd.image.name": name,
    "org.opencontainers.image.ref.name": name.slice(name.lastIndexOf(":") + 1),
  };
}

/** For tools that read only the format of `docker save`. */
function dockerManifest(images: SavedImage[]): string {
  const entries = images.map(({ record, names, layers }) => ({
    Config: blobName(record.id),
    RepoTags: names,
    Layers: layers.map(({ diffId }) => blobName(diffId)),
  }));
  return jsonText(entries);
}

/** @throws CriError FAILED_PRECONDITION for a layer whose tar stream cannot be reproduced. */
export async function savedImages(
  found: { ref: string; record: ImageRecord }[],
  from: { records: ImageRecords; layers: LayerStore },
): Promise<SavedImage[]> {
  const images = new Map<string, SavedImage>();
  for (const { ref, record } of found) {
    const image = images.get(record.id) ?? (await savedImage(record, from));
    const tag = record.repoTags.find((name) => name === nameOrNone(ref));
    image.names = [...new Set([...image.names, ...(tag === undefined ? record.repoTags : [tag])])];
    images.set(record.id, image);
  }
  return [...images.values()];
}

async function savedImage(
  record: ImageRecord,
  { records, layers }: { records: ImageRecords; layers: LayerStore },
): Promise<SavedImage> {
  const what = record.repoTags[0] ?? record.id;
  const config = await records.configOf(record.id);
  if (config === undefined) {
    const message = `${what} cannot be saved: its config is missing or damaged; pull it again`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  const saved = record.layers.map((chainId): PackedLayer => {
    const diffId = layers.diffIdOf(chainId);
    const tarSplit = layers.tarSplit(chainId);
    if (diffId !== undefined && tarSplit !== undefined) {
      const { path, streamBytes } = tarSplit;
      return { diffId, streamBytes, tree: layers.tree(chainId), recipe: path };
    }
    const message = `${what} cannot be saved: its layer ${diffId ?? chainId} cannot be reproduced byte for byte (an entry of it replaces another, or an earlier isulad-ts unpacked it); copy the image from its registry`;
    throw new CriError("FAILED_PRECONDITION", message);
  });
  return { record, names: [], config: config.toString("utf8"), layers: saved };
}
