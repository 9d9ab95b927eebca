// Decompresses an image archive (gzip or zstd) into a file: files in a tar can be read by offset only when it
// is not compressed. Runs in the unpack helper.
import { constants } from "node:fs";
import { CriError } from "../base/errors.ts";
import { fileChunks, freeChunk } from "../sys/chunks.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import { ExpansionLimit } from "./expansion_limit.ts";
import { Inflate } from "./inflate.ts";

export type InflateJob = {
  kind: "inflate";
  path: string;
  /** The file to create. */
  target: string;
  /** The most decompressed bytes per compressed byte; ExpansionLimit exempts small files. */
  ratioMax: number;
};

/** @throws CriError RESOURCE_EXHAUSTED over the limit, DATA_LOSS for data that does not decompress. */
export async function inflateFile({ path, target, ratioMax }: InflateJob): Promise<void> {
  using archive = Descriptor.open(path, constants.O_RDONLY);
  using file = Descriptor.create(target);
  const limit = new ExpansionLimit({ ratioMax });
  const inflate = new Inflate((chunk) => {
    limit.addPlain(chunk.length);
    writeAll(file, chunk);
  });
  try {
    for (const chunk of fileChunks(archive)) {
      limit.addPacked(chunk.length);
      await inflate.push(chunk);
      freeChunk(chunk);
    }
    await inflate.end();
  } catch (error) {
    if (!(error instanceof CriError)) throw error;
    throw new CriError(error.code, `${path}: ${error.message}`, { cause: error });
  }
}
