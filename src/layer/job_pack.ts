// Writes an image archive in the unpack helper: small files from the job, and layers' tar streams rebuilt
// from their trees and tar-splits. It chroots into each tree so that no symlink leads outside.
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import { once } from "node:events";
import type { Transform } from "node:stream";
import * as zlib from "node:zlib";
import { CriError, errnoOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import type { ChrootJail } from "./chroot_jail.ts";
import { algorithmOf } from "../base/digest.ts";
import { ByteProgress } from "./layer_progress.ts";
import { readTarSplit } from "./tar_split.ts";
import { tarEnd, tarHeader, tarPadding } from "./tar_write.ts";

/** A layer whose tar stream becomes a file of the archive; recipe: its tar-split. */
export type PackedLayer = { tree: string; recipe: string; streamBytes: number; diffId: string };

export type PackEntry = { name: string; content: { text: string } | { layer: PackedLayer } };

export type PackJob = {
  kind: "pack";
  /** An existing empty file. */
  path: string;
  compression: "gzip" | "zstd" | "none";
  entries: PackEntry[];
};

const copyBytes = 256 << 10;

// @types/node 22.10 does not declare it.
const { createZstdCompress } = zlib as unknown as { createZstdCompress: () => Transform };

/** onProgress: bytes written so far, of all layers together. */
export async function packArchive(
  job: PackJob,
  jail: ChrootJail,
  onProgress: (bytes: number) => void,
): Promise<void> {
  using file = Descriptor.open(job.path, fs.constants.O_RDWR);
  const sink = new Sink(file, job.compression);
  const progress = new ByteProgress(onProgress);
  for (const { name, content } of job.entries) {
    if ("text" in content) {
      const bytes = Buffer.from(content.text);
      await sink.write(tarHeader(name, bytes.length));
      await sink.write(bytes);
      await sink.write(tarPadding(bytes.length));
    } else {
      const { streamBytes } = content.layer;
      await sink.write(tarHeader(name, streamBytes));
      await writeLayer(content.layer, { jail, sink, progress });
      await sink.write(tarPadding(streamBytes));
    }
  }
  await sink.write(tarEnd);
  await sink.end();
  progress.report();
  fs.fsyncSync(file.fd);
}

/** @throws CriError DATA_LOSS when the tree no longer matches the layer that was unpacked. */
async function writeLayer(
  layer: PackedLayer,
  { jail, sink, progress }: { jail: ChrootJail; sink: Sink; progress: ByteProgress },
): Promise<void> {
  const hash = createHash(algorithmOf(layer.diffId));
  let length = 0;
  const write = async (bytes: Uint8Array) => {
    hash.update(bytes);
    length += bytes.length;
    await sink.write(bytes);
    progress.add(bytes.length);
  };
  using tarSplit = Descriptor.open(layer.recipe, fs.constants.O_RDONLY);
  jail.enter(layer.tree);
  try {
    for (const part of readTarSplit(tarSplit)) {
      if (part.kind === "bytes") await write(part.bytes);
      else for (const bytes of contentOf(part)) await write(bytes);
    }
  } finally {
    jail.leave();
  }
  const diffId = `${algorithmOf(layer.diffId)}:${hash.digest("hex")}`;
  if (diffId === layer.diffId && length === layer.streamBytes) return;
  throw changed(layer.diffId, `it now packs to ${diffId}`);
}

/** Reads a part of a file below "/", the tree that this process is confined to. */
function* contentOf(part: { path: Buffer; offset: number; length: number }): Generator<Uint8Array> {
  const name = part.path.toString("utf8");
  using file = openPart(part.path, name);
  const buffer = Buffer.allocUnsafe(Math.min(copyBytes, part.length));
  for (let at = 0; at < part.length;) {
    const wanted = Math.min(buffer.length, part.length - at);
    const got = fs.readSync(file.fd, buffer, 0, wanted, part.offset + at);
    if (got === 0) throw changed(name, "it is shorter than it was");
    yield buffer.subarray(0, got);
    at += got;
  }
}

function openPart(relative: Buffer, name: string): Descriptor {
  const path = Buffer.concat([Buffer.from("/"), relative]);
  try {
    return Descriptor.open(path, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW);
  } catch (error) {
    throw changed(name, `it cannot be opened (${errnoOf(error)})`);
  }
}

function changed(object: string, how: string): CriError {
  const message = `${object} has changed since it was unpacked: ${how}; remove the image and pull it again`;
  return new CriError("DATA_LOSS", message);
}

/** Writes to a descriptor, optionally compressed. The caller may reuse the bytes once write() resolves. */
class Sink {
  readonly #file: Descriptor;
  readonly #stream: Transform | undefined;
  #failure: Error | undefined;

  constructor(file: Descriptor, compression: PackJob["compression"]) {
    this.#file = file;
    if (compression === "none") return;
    this.#stream = compression === "gzip" ? zlib.createGzip({ level: 6 }) : createZstdCompress();
    this.#stream.on("error", (error) => (this.#failure ??= error));
    this.#stream.on("data", (bytes: Uint8Array) => {
      try {
        if (this.#failure === undefined) writeAll(this.#file, bytes);
      } catch (error) {
        this.#failure = error as Error;
      }
    });
  }

  async write(bytes: Uint8Array): Promise<void> {
    if (bytes.length === 0) return;
    if (this.#stream === undefined) return writeAll(this.#file, bytes);
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#stream.write(bytes, () => resolve());
    await promise;
    if (this.#failure !== undefined) throw this.#failure;
  }

  async end(): Promise<void> {
    if (this.#stream === undefined) return;
    const ended = once(this.#stream, "end");
    this.#stream.end();
    await ended;
    if (this.#failure !== undefined) throw this.#failure;
  }
}
