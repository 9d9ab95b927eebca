// The helper process that fetches and unpacks layers: `isulad-ts unpack`, jobs as JSON lines on its
// standard input, answers as JSON lines on its standard output.
// Decision: it is a process of its own because only a chroot keeps what a hostile layer says inside
// the layer's folder, because unpacking would hold up the daemon's loop, and because its memory
// goes away with it. It fetches itself, so that no layer passes through the daemon.
import * as fs from "node:fs";
import { createInterface } from "node:readline";
import { codeOf, CriError, errnoOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { chroot, leaveChroot, syncfs } from "../sys/path.ts";
import { inherit } from "./inherit.ts";
import { unpackLayer, type UnpackedLayer } from "./layer.ts";
import { readBlob, type Session } from "./registry.ts";

export type LayerSource =
  | { kind: "registry"; session: Session }
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
    }
  | { kind: "inherit"; folder: string; lower: string[]; paths: string[] }
  | { kind: "sync"; folder: string };

export type UnpackAnswer =
  | { kind: "progress"; bytes: number }
  | { kind: "done"; layer?: UnpackedLayer }
  | { kind: "failed"; code: ErrorCode; message: string };

/** A layer may unpack to this many bytes. */
const layerBytesMax = 256 * 2 ** 30;
const progressStepBytes = 1 << 20;

export async function unpackMain(_argv: string[]): Promise<number> {
  const jail = new Jail();
  const lines = createInterface({ input: process.stdin });
  lines.once("close", () => process.exit(0)); // the daemon has no more, or is no more
  for await (const line of lines) {
    const answer = await perform(JSON.parse(line) as UnpackJob, jail).catch(failed);
    send(answer);
  }
  return 0;
}

function send(answer: UnpackAnswer): void {
  fs.writeSync(1, `${JSON.stringify(answer)}\n`);
}

async function perform(job: UnpackJob, jail: Jail): Promise<UnpackAnswer> {
  if (job.kind === "unpack") return { kind: "done", layer: await unpack(job, jail) };
  if (job.kind === "inherit") inherit(job);
  else {
    const fd = fs.openSync(job.folder, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
    syncfs(fd);
    fs.closeSync(fd);
  }
  return { kind: "done" };
}

function failed(error: unknown): UnpackAnswer {
  const isFull = ["ENOSPC", "EDQUOT"].includes(errnoOf(error) ?? "");
  const message = isFull ? `no space left for the layer: ${messageOf(error)}` : messageOf(error);
  return { kind: "failed", code: isFull ? "RESOURCE_EXHAUSTED" : codeOf(error), message };
}

async function unpack(job: UnpackJob & { kind: "unpack" }, jail: Jail): Promise<UnpackedLayer> {
  if (job.size === 0) throw new CriError("INVALID_ARGUMENT", `layer ${job.digest} is empty`);
  try {
    const layer = await unpackLayer(counted(chunksOf(job, jail)), {
      digest: job.digest,
      diffId: job.diffId,
      bytesMax: layerBytesMax,
      assertConfined: () => jail.assertInside(),
    });
    if (job.digest !== "" && layer.digest !== job.digest) {
      throw new CriError("DATA_LOSS", `layer ${job.digest} arrived with digest ${layer.digest}`);
    }
    if (layer.diffId !== job.diffId) {
      const message = `layer ${job.digest} unpacks to ${layer.diffId}; its config says ${job.diffId}`;
      throw new CriError("DATA_LOSS", message);
    }
    return layer;
  } finally {
    jail.leave();
  }
}

/** The layer's bytes; from the first of them on, this process is confined to the layer's folder. */
function chunksOf(job: UnpackJob & { kind: "unpack" }, jail: Jail): AsyncIterable<Uint8Array> {
  const { source, size } = job;
  if (source.kind === "file") {
    const fd = fs.openSync(source.path, "r");
    jail.enter(job.folder);
    const { offset } = source;
    const stream = fs.createReadStream("", {
      fd,
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

async function* counted(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  let told = 0;
  for await (const chunk of source) {
    yield chunk;
    bytes += chunk.length;
    if (bytes - told < progressStepBytes) continue;
    told = bytes;
    send({ kind: "progress", bytes });
  }
}

/** Confines this process to a folder, and lets it out again. */
class Jail {
  readonly #rootFd = fs.openSync("/", fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  #isInside = false;

  enter(folder: string): void {
    chroot(folder);
    this.#isInside = true;
  }

  leave(): void {
    if (!this.#isInside) return;
    this.#isInside = false;
    leaveChroot(this.#rootFd);
  }

  assertInside(): void {
    if (!this.#isInside) throw new Error("unpacking outside of the layer's folder");
  }
}
