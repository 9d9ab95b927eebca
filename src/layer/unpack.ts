// The helper process that fetches and unpacks layers: `isulad-ts unpack`, jobs as JSON lines on its
// standard input, answers as JSON lines on its standard output.
// Decision: it is a process of its own because only a chroot keeps what a hostile layer says inside
// the layer's folder, because unpacking would hold up the daemon's loop, and because its memory
// goes away with it. It fetches itself, so that no layer passes through the daemon.
import * as fs from "node:fs";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { codeOf, CriError, errnoOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import { syncfs } from "../sys/path.ts";
import { killGroup, leadGroup } from "../sys/process.ts";
import { setUmask } from "../sys/umask.ts";
import { clone, type Cloned, type CloneJob } from "./clone.ts";
import { copyLayers, type CopyJob } from "./copy.ts";
import { Decoder } from "./decode.ts";
import { inherit, type Inheritance } from "./inherit.ts";
import { inflateFile, type InflateJob } from "./inflate_file.ts";
import { Jail } from "./jail.ts";
import { unpackLayer, type LayerLimits, type UnpackedLayer } from "./layer.ts";
import { listingBytesMax, readListing, writeListing } from "./layer_manifest.ts";
import { pack, type PackJob } from "./pack.ts";
import type { Decoding } from "./processors.ts";
import { readBlob } from "../registry/distribution.ts";
import type { PullSession } from "../registry/pull_session.ts";
import { type Differences, verify } from "./verify.ts";
import { writeWhiteouts } from "./whiteouts.ts";

export type LayerSource =
  | { kind: "registry"; session: PullSession }
  | { kind: "file"; path: string; offset: number };

export type UnpackJob =
  | {
      kind: "unpack";
      /** Existing empty folder. */
      folder: string;
      source: LayerSource;
      /** Of the blob; "" where an archive does not tell it. */
      digest: string;
      size: number;
      diffId: string;
      decoding?: Decoding | undefined;
      limits: LayerLimits;
      /** A file to be made: what the layer holds. */
      listing: string;
      /** A file to be made: how its tar stream is made again. */
      recipe: string;
      /** A file to be made: the blob as it came; absent: it is not kept. */
      blob?: string | undefined;
    }
  | ({ kind: "inherit" } & Inheritance)
  | CloneJob
  | InflateJob
  | PackJob
  | CopyJob
  | { kind: "verify"; folder: string; listing: string }
  | { kind: "sync"; folder: string };

/** What a job of each kind gives. */
export type JobResults = {
  unpack: UnpackedLayer;
  inherit: undefined;
  clone: Cloned;
  inflate: undefined;
  pack: undefined;
  copy: undefined;
  verify: Differences;
  sync: undefined;
};

export type UnpackAnswer =
  | { kind: "progress"; bytes: number }
  | { kind: "done"; result: JobResults[UnpackJob["kind"]] }
  | { kind: "failed"; code: ErrorCode; message: string };

const progressStepBytes = 1 << 20;

/** argv: the form of whiteouts that the node's layers have. */
export async function unpackMain(argv: string[]): Promise<number> {
  leadGroup();
  setUmask(0); // modes are those of the layers
  writeWhiteouts(argv[0] === "native" ? "native" : "overlay");
  const jail = new Jail();
  const lines = createInterface({ input: process.stdin });
  lines.once("close", () => {
    // The daemon has no more, or is no more.
    killGroup(process.pid); // with what stream processors have left
    process.exit(0);
  });
  for await (const line of lines) {
    const answer = await perform(jsonValue(line) as UnpackJob, jail).catch(failed);
    send(answer);
  }
  return 0;
}

function send(answer: UnpackAnswer): void {
  fs.writeSync(1, `${jsonText(answer)}\n`);
}

async function perform(job: UnpackJob, jail: Jail): Promise<UnpackAnswer> {
  const result = await resultOf(job, jail);
  return { kind: "done", result };
}

async function resultOf(job: UnpackJob, jail: Jail): Promise<JobResults[UnpackJob["kind"]]> {
  switch (job.kind) {
    case "unpack":
      return await unpack(job, jail).catch((error: unknown) => {
        throw withLayer(error, job.digest || job.diffId);
      });
    case "inherit":
      inherit(job);
      return undefined;
    case "clone":
      return clone(job);
    case "inflate":
      await inflateFile(job);
      return undefined;
    case "pack":
      await pack(job, jail, (bytes) => send({ kind: "progress", bytes }));
      return undefined;
    case "copy":
      await copyLayers(job);
      return undefined;
    case "verify": {
      const entries = readListing(job.listing);
      jail.enter(job.folder);
      try {
        return verify(entries);
      } finally {
        jail.leave();
      }
    }
    case "sync": {
      const flags = fs.constants.O_RDONLY | fs.constants.O_DIRECTORY;
      using folder = Descriptor.open(job.folder, flags);
      syncfs(folder);
      return undefined;
    }
  }
}

function withLayer(error: unknown, digest: string): unknown {
  if (!(error instanceof CriError) || error.message.includes(digest)) return error;
  return new CriError(error.code, `layer ${digest}: ${error.message}`, { cause: error });
}

function failed(error: unknown): UnpackAnswer {
  const isFull = ["ENOSPC", "EDQUOT"].includes(errnoOf(error) ?? "");
  const message = isFull ? `no space left: ${messageOf(error)}` : messageOf(error);
  return { kind: "failed", code: isFull ? "RESOURCE_EXHAUSTED" : codeOf(error), message };
}

async function unpack(job: UnpackJob & { kind: "unpack" }, jail: Jail): Promise<UnpackedLayer> {
  // Opened before the chroot: they lie outside.
  using listing = Descriptor.create(job.listing);
  using recipe = Descriptor.create(job.recipe);
  using blob = job.blob === undefined ? undefined : Descriptor.create(job.blob);
  await using decoder = job.decoding && (await Decoder.start(job.decoding));
  try {
    const { layer, entries } = await unpackLayer(counted(chunksOf(job, jail), blob), {
      digest: job.digest,
      diffId: job.diffId,
      limits: job.limits,
      recipe,
      decode: decoder && ((source) => decoder.through(source)),
      assertConfined: () => jail.assertInside(),
    });
    if (layer.diffId !== job.diffId) {
      const message = `layer ${job.digest} unpacks to ${layer.diffId}; its config says ${job.diffId}`;
      throw new CriError("DATA_LOSS", message);
    }
    writeListing(listing, entries, listingBytesMax(job.limits.entriesMax));
    return layer;
  } finally {
    jail.leave();
  }
}

/** The layer's bytes; from the first of them on, this process is confined to the layer's folder. */
function chunksOf(job: UnpackJob & { kind: "unpack" }, jail: Jail): AsyncIterable<Uint8Array> {
  const { source, size } = job;
  if (size === 0) {
    jail.enter(job.folder);
    return Readable.from([]) as AsyncIterable<Uint8Array>;
  }
  if (source.kind === "file") {
    const file = Descriptor.open(source.path, fs.constants.O_RDONLY);
    jail.enter(job.folder);
    const { offset } = source;
    const stream = fs.createReadStream("", {
      fd: file.release(), // the stream closes it
      start: offset,
      end: offset + size - 1,
      highWaterMark: 256 << 10,
    });
    return stream as AsyncIterable<Uint8Array>;
  }
  jail.enter(job.folder);
  return readBlob(
    source.session,
    { digest: job.digest, size },
    {
      signal: new AbortController().signal, // the daemon ends this process to cancel
      around: async (connect) => {
        // Name resolution and certificates lie outside.
        jail.leave();
        try {
          return await connect();
        } finally {
          jail.enter(job.folder);
        }
      },
    },
  );
}

async function* counted(
  source: AsyncIterable<Uint8Array>,
  blob: Descriptor | undefined,
): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  let told = 0;
  for await (const chunk of source) {
    yield chunk;
    if (blob !== undefined) writeAll(blob, chunk);
    bytes += chunk.length;
    if (bytes - told < progressStepBytes) continue;
    told = bytes;
    send({ kind: "progress", bytes });
  }
}
