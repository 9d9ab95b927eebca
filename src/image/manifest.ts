// Parses manifests, indexes and image configs: untrusted JSON, so validated and bounded here.
import * as v from "valibot";
import { documentBounds } from "../base/json_bounds.ts";
import { CriError } from "../base/errors.ts";
import { digestOf, isDigest } from "../base/digest.ts";
import { mapOf, objectOf, parseAs, parseDocument } from "../base/schema.ts";
import { clip } from "../base/text.ts";

/** As with containerd; an overlay of the kernel has at most 500. */
const layersMax = 450;
const tooManyLayers = `are more than ${layersMax}: build the image with fewer layers`;
export const configBytesMax = documentBounds.bytesMax;
/** Bounds the settings that the daemon keeps in memory. No program starts with much more: execve(2) takes some 2 MiB. */
const settingsBytesMax = 256 << 10;
/** How much of a media type or URL a message shows. */
const shownBytesMax = 200;

const Digest = v.pipe(v.string(), v.check(isDigest, "not a sha256 or sha512 digest"));
/** Accepts a digest of any algorithm (OCI image-spec, descriptor.md): only the chosen entry must be verifiable. */
const AnyDigest = v.pipe(
  v.string(),
  v.regex(/^[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[A-Za-z0-9=_-]+$/, "not a digest"),
);

/** A list of a Go program: an empty one may be null or absent. */
export function listOf<Schema extends v.GenericSchema>(schema: Schema) {
  return v.pipe(v.nullish(v.array(schema), []), v.maxLength(layersMax, tooManyLayers));
}

/** The kernel ends arguments, variables and paths at a NUL byte. */
const Text = v.pipe(
  v.string(),
  v.check((text) => !text.includes("\0"), "holds a NUL byte"),
);
const short = v.pipe(Text, v.maxLength(256));
/** As in Go, a text that is null is empty. */
const Texts = mapOf(v.string(), v.nullish(v.string(), ""));
const Os = v.pipe(
  v.nullish(short, ""),
  v.transform((os) => os.toLowerCase() || "linux"), // as in containerd
);
const OsFeatures = v.nullish(v.array(v.string()), []);

const Descriptor = v.object({
  mediaType: v.nullish(v.string(), ""),
  digest: Digest,
  /** Some builders leave it out: the blob's digest decides then. */
  size: v.nullish(v.pipe(v.number(), v.safeInteger(), v.minValue(0))),
  platform: v.nullish(
    objectOf({
      os: Os,
      architecture: v.nullish(v.string(), ""),
      variant: v.nullish(v.string(), ""),
      "os.features": OsFeatures,
    }),
  ),
  artifactType: v.nullish(v.string(), ""),
  annotations: v.nullish(Texts),
  urls: v.nullish(v.array(v.string())),
});
export type Descriptor = v.InferOutput<typeof Descriptor>;

/** An entry of an index; its digest may be of an algorithm that this node cannot verify. */
const IndexEntry = v.object({ ...Descriptor.entries, digest: AnyDigest });

const Manifest = v.object({ config: Descriptor, layers: listOf(Descriptor) });
export type Manifest = v.InferOutput<typeof Manifest>;

const Index = v.object({ manifests: v.pipe(v.array(IndexEntry), v.maxLength(1000)) });
export type Index = v.InferOutput<typeof Index>;

const strings = v.nullish(v.array(Text));

export const ImageSettings = v.object({
  Env: strings,
  Entrypoint: strings,
  Cmd: strings,
  User: v.nullish(short),
  WorkingDir: v.nullish(v.pipe(Text, v.maxLength(4096))),
  StopSignal: v.nullish(short),
  Volumes: v.nullish(mapOf(v.pipe(Text, v.maxLength(4096)), v.unknown())),
});

const ConfigFile = v.object({
  os: Os,
  architecture: v.nullish(short, ""),
  variant: v.nullish(short, ""),
  "os.features": OsFeatures,
  config: v.nullish(objectOf({ ...ImageSettings.entries, Labels: v.nullish(Texts) })),
  rootfs: v.object({ diff_ids: listOf(Digest) }),
});

/** An image's defaults for containers, and its platform. */
export type ImageConfig = v.InferOutput<typeof ImageSettings> & {
  architecture: string;
  os: string;
  variant?: string;
};

/** @throws CriError INVALID_ARGUMENT. */
export async function parseIndex(bytes: Uint8Array, what: string): Promise<Index> {
  return parseAs(Index, await parseDocument(bytes, what), what);
}

/** Parses an image's manifest, or an index of manifests by platform. */
export async function parseManifest(
  bytes: Uint8Array,
  what: string,
): Promise<{ kind: "image"; manifest: Manifest } | { kind: "index"; index: Index }> {
  const value = await parseDocument(bytes, what);
  if (typeof value === "object" && value !== null) {
    // By content: the media type is only a claim. A document that is both is ambiguous, so refused.
    if ("manifests" in value && !("layers" in value)) {
      return { kind: "index", index: parseAs(Index, value, what) };
    }
    if ("schemaVersion" in value && value.schemaVersion === 1) {
      const message = `${what} has the old manifest schema 1; push the image again with a current tool`;
      throw new CriError("INVALID_ARGUMENT", message);
    }
    if ("manifests" in value) {
      throw new CriError("INVALID_ARGUMENT", `${what} is both an index and an image`);
    }
  }
  if (isArtifact(value)) throw new NoImage(`${what} is no container image but an artifact`);
  const manifest = parseAs(Manifest, value, what);
  checkTypes(manifest, what);
  return { kind: "image", manifest };
}

/** True for the artifact manifest of early OCI 1.1 (ORAS), which has blobs, or a subject alone, in place of a config. */
function isArtifact(value: unknown): boolean {
  if (typeof value !== "object" || value === null || "config" in value) return false;
  return ["blobs", "artifactType", "subject"].some((key) => key in value);
}

const nouns = { index: "index", image: "manifest" };

/** Returns the media type that a manifest or index states, else the one of its form. @throws CriError. */
export async function manifestTypeOf(bytes: Uint8Array, what: string): Promise<string> {
  const { mediaType } = (await parseDocument(bytes, what)) as { mediaType?: unknown };
  if (typeof mediaType === "string" && mediaType !== "") return mediaType;
  return `application/vnd.oci.image.${nouns[(await parseManifest(bytes, what)).kind]}.v1+json`;
}

const configTypes = [
  "",
  "application/octet-stream",
  "application/vnd.oci.image.config.v1+json",
  "application/vnd.docker.container.image.v1+json",
];

/**
 * The manifest of something other than a container image (a chart, a signature, an attestation), or one that this node
 * cannot verify. Another entry of the index may be an image.
 */
export class NoImage extends CriError {
  constructor(message: string) {
    super("INVALID_ARGUMENT", message);
  }
}

/** @throws NoImage for an entry whose digest is of another algorithm than this node knows. */
export function assertVerifiable({ digest }: Descriptor, what: string): void {
  if (isDigest(digest)) return;
  const shown = clip(digest, shownBytesMax);
  throw new NoImage(`${what}: ${shown} cannot be verified: it is neither sha256 nor sha512`);
}

/** Refuses manifests of other artifacts. @throws NoImage. */
function checkTypes({ config, layers }: Manifest, what: string): void {
  if (!configTypes.includes(config.mediaType)) {
    const message = `${what} is no container image: its config is ${clip(config.mediaType, shownBytesMax)}`;
    throw new NoImage(message);
  }
  for (const { mediaType, digest } of layers) {
    if (/[+/](?:json|xml|yaml)$|^text\//.test(mediaType)) {
      const message = `${what}: layer ${digest} is not a file system but ${clip(mediaType, shownBytesMax)}`;
      throw new NoImage(message);
    }
  }
}

/** Returns the config, its diff ids, lowest layer first, and its OS features. @throws CriError INVALID_ARGUMENT. */
export async function parseConfig(bytes: Uint8Array, what: string) {
  const file = parseAs(ConfigFile, await parseDocument(bytes, what), what);
  if (file.os !== "linux") {
    throw new CriError("INVALID_ARGUMENT", `${what} is for ${file.os}; this node runs linux`);
  }
  const { architecture, os, variant } = file;
  // The labels, which may be long, are not needed again.
  const { Labels: _, ...settings } = file.config ?? {};
  assertSettings(settings, what);
  const config: ImageConfig = { ...settings, architecture, os, ...(variant && { variant }) };
  return { config, diffIds: file.rootfs.diff_ids, osFeatures: file["os.features"] };
}

function assertSettings(
  { Env, Entrypoint, Cmd, Volumes }: v.InferOutput<typeof ImageSettings>,
  what: string,
): void {
  const lists = [Env, Entrypoint, Cmd, Object.keys(Volumes ?? {})];
  const bytes = lists.flatMap((list) => list ?? []).reduce((sum, text) => sum + text.length, 0);
  if (bytes <= settingsBytesMax) return;
  const message = `${what}: its Env, Entrypoint, Cmd and Volumes take ${bytes} bytes, more than ${settingsBytesMax}`;
  throw new CriError("INVALID_ARGUMENT", message);
}

/** Computes chain ids: each identifies a layer with all layers below it (OCI image-spec, config.md). */
export function chainIds(diffIds: string[]): string[] {
  const chain: string[] = [];
  for (const diffId of diffIds) {
    const below = chain.at(-1);
    chain.push(below === undefined ? diffId : digestOf(Buffer.from(`${below} ${diffId}`)));
  }
  return chain;
}
