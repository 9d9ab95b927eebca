// Chooses a layer's stream processors: programs, compatible with containerd's, that decode a blob before it
// is unpacked. They decrypt encrypted images with keys of the node (the node key model).
import type { StreamProcessor } from "../base/config_values.ts";
import { CriError } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { clip } from "../base/text.ts";

/** A layer as an image manifest describes it. */
export type LayerDescriptor = {
  /** "" when unknown. */
  mediaType: string;
  /** Of the blob; "" when an archive does not state it. */
  digest: string;
  /** Absent when the manifest does not state it. */
  size?: number | null;
  annotations?: Record<string, string> | null;
  /** Where a layer that need not be in the registry can be fetched. */
  urls?: string[] | null;
};

/** One program of the chain; mediaType: of its input. */
export type DecodeStep = Pick<StreamProcessor, "path" | "args" | "env"> & {
  name: string;
  mediaType: string;
};

export type Decoding = {
  /** First to last. */
  steps: DecodeStep[];
  /** Input of each program on descriptor 3, in base64. */
  payload: string;
  /** Maximum time without any output. */
  timeoutMs: number;
};

export type ProcessorOptions = {
  /** By name. */
  processors: Record<string, StreamProcessor>;
  timeoutMs: number;
};

const stepsMax = 8;
/** How much of a media type a message shows. */
const shownBytesMax = 200;

/**
 * Returns the programs for a layer; undefined when it needs none.
 * @throws CriError FAILED_PRECONDITION for an encrypted layer that no program accepts, or a file system image.
 */
export function chooseDecoding(
  layer: LayerDescriptor,
  { processors, timeoutMs }: ProcessorOptions,
): Decoding | undefined {
  const steps: DecodeStep[] = [];
  let { mediaType } = layer;
  for (;;) {
    const found = Object.entries(processors).find(([, { accepts }]) => accepts.includes(mediaType));
    if (found === undefined) break;
    if (steps.length === stepsMax) {
      const message = `layer ${layer.digest} needs more than ${stepsMax} stream processors: "stream-processors" may contain a cycle of "accepts" and "returns"`;
      throw new CriError("FAILED_PRECONDITION", message);
    }
    const [name, { path, args, env, returns }] = found;
    steps.push({ name, path, args, env, mediaType });
    mediaType = returns;
  }
  if (isEncrypted(mediaType)) {
    const message = `layer ${layer.digest} is encrypted (${mediaType}): no program in "stream-processors" accepts that`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  const format = /\b(erofs|nydus|squashfs|ext4)\b/.exec(mediaType)?.[1];
  if (format !== undefined) {
    const message = `layer ${layer.digest} is not a tar but ${format} (${clip(mediaType, shownBytesMax)}), which this runtime cannot unpack: pull the image in its OCI form`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  if (steps.length === 0) return undefined;
  return { steps, payload: payloadOf(layer).toString("base64"), timeoutMs };
}

/** Suffixes of ocicrypt (spec/spec.go); images made before 2019 have "+enc". */
function isEncrypted(mediaType: string): boolean {
  return /\+enc(?:rypted)?$/.test(mediaType);
}

/**
 * Encodes the payload that containerd's client passes to a decoder: the layer's descriptor, whose annotations
 * contain the wrapped keys, as JSON in a google.protobuf.Any (imgcrypt, payload.go).
 */
function payloadOf({ mediaType, digest, size, annotations }: LayerDescriptor): Buffer {
  const descriptor = { mediaType, digest, size, annotations: annotations ?? {} };
  const json = jsonText({ DecryptConfig: { Parameters: null }, Descriptor: descriptor });
  const typeUrl = "io.containerd.ocicrypt.v1.Payload";
  return Buffer.concat([bytesField(1, Buffer.from(typeUrl)), bytesField(2, Buffer.from(json))]);
}

/** Protobuf wire format: tag, length, bytes. */
function bytesField(number: number, bytes: Buffer): Buffer {
  const head = [(number << 3) | 2];
  let length = bytes.length;
  for (; length > 0x7f; length >>>= 7) head.push((length & 0x7f) | 0x80);
  head.push(length);
  return Buffer.concat([Buffer.from(head), bytes]);
}
