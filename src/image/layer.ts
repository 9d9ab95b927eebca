// One layer: bytes in, a folder out, with the digests of what was really read.
import { createHash } from "node:crypto";
import { CriError } from "../base/errors.ts";
import { Inflate } from "./inflate.ts";
import { TarReader } from "./tar.ts";
import { Untar } from "./untar.ts";

export type UnpackedLayer = {
  /** Of the bytes as they came. */
  digest: string;
  /** Of the tar stream inside. */
  diffId: string;
  /** Bytes of file content. */
  sizeBytes: number;
  /** Folders that no entry described, "" for the root. */
  implicit: string[];
};

export type LayerOptions = {
  /** sha256 or sha512 digests to learn the algorithms from. */
  digest: string;
  diffId: string;
  /** Of the unpacked tar stream. */
  bytesMax: number;
  /** Throws while this process is not confined to the layer's folder. */
  assertConfined: () => void;
};

/** Unpacks into "/" of the chroot that the source enters before its first chunk. */
export async function unpackLayer(
  source: AsyncIterable<Uint8Array>,
  options: LayerOptions,
): Promise<UnpackedLayer> {
  const packed = createHash(algorithmOf(options.digest));
  const plain = createHash(algorithmOf(options.diffId));
  const untar = new Untar();
  let plainBytes = 0;
  const reader = new TarReader(untar);
  const inflate = new Inflate((chunk) => {
    options.assertConfined();
    plainBytes += chunk.length;
    if (plainBytes > options.bytesMax) {
      const message = `the layer unpacks to more than ${options.bytesMax} bytes`;
      throw new CriError("RESOURCE_EXHAUSTED", message);
    }
    plain.update(chunk);
    reader.push(chunk);
  });
  for await (const chunk of source) {
    packed.update(chunk);
    await inflate.push(chunk);
  }
  await inflate.end();
  reader.end();
  options.assertConfined();
  untar.end();
  return {
    digest: `${algorithmOf(options.digest)}:${packed.digest("hex")}`,
    diffId: `${algorithmOf(options.diffId)}:${plain.digest("hex")}`,
    sizeBytes: untar.bytes,
    implicit: untar.implicit,
  };
}

function algorithmOf(digest: string): "sha256" | "sha512" {
  return digest.startsWith("sha512:") ? "sha512" : "sha256";
}
