// The helper's job to unpack an archive that is packed as a whole: its parts are found only in a plain one.
import * as fs from "node:fs";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import { Inflate } from "./inflate.ts";
import { ratioFreeBytes } from "./layer.ts";

export type InflateJob = {
  kind: "inflate";
  path: string;
  /** A file to be made. */
  target: string;
  /** Unpacked by packed bytes, beyond what may come of anything. */
  ratioMax: number;
};

/** @throws CriError RESOURCE_EXHAUSTED over the limit, DATA_LOSS for what does not decompress. */
export async function inflateFile({ path, target, ratioMax }: InflateJob): Promise<void> {
  using file = Descriptor.create(target);
  let packedBytes = 0;
  let plainBytes = 0;
  const inflate = new Inflate((chunk) => {
    plainBytes += chunk.length;
    if (plainBytes > Math.max(ratioFreeBytes, packedBytes * ratioMax)) {
      const message = `${path}: ${packedBytes} bytes of it unpack to over ${ratioMax} times as much (layer-max-ratio)`;
      throw new CriError("RESOURCE_EXHAUSTED", message);
    }
    writeAll(file, chunk);
  });
  try {
    for await (const chunk of fs.createReadStream(path, { highWaterMark: 256 << 10 })) {
      packedBytes += (chunk as Buffer).length;
      await inflate.push(chunk as Buffer);
    }
    await inflate.end();
  } catch (error) {
    if (codeOf(error) !== "DATA_LOSS") throw error;
    throw new CriError("DATA_LOSS", `${path}: ${messageOf(error)}`, { cause: error });
  }
}
