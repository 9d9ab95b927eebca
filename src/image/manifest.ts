// Manifests, indexes and image configs: JSON that somebody else wrote, so checked and bounded here.
import { createHash } from "node:crypto";
import * as v from "valibot";
import { CriError } from "../base/errors.ts";
import { isDigest } from "./reference.ts";

/** Most layers one overlay mount takes with a page of options. */
export const layersMax = 127;
export const tooManyLayers = `are more than ${layersMax}: build the image with fewer layers`;
export const manifestBytesMax = 4 << 20;
export const configBytesMax = 8 << 20;

const Digest = v.pipe(v.string(), v.check(isDigest, "not a sha256 or sha512 digest"));

const Descriptor = v.object({
  mediaType: v.optional(v.string(), ""),
  digest: Digest,
  size: v.pipe(v.number(), v.safeInteger(), v.minValue(0)),
  platform: v.nullish(
    v.object({
      os: v.optional(v.string(), ""),
      architecture: v.optional(v.string(), ""),
      variant: v.optional(v.string(), ""),
    }),
  ),
  annotations: v.nullish(v.record(v.string(), v.string())),
});
export type Descriptor = v.InferOutput<typeof Descriptor>;

const Manifest = v.object({
  config: Descriptor,
  layers: v.pipe(v.array(Descriptor), v.maxLength(layersMax, tooManyLayers)),
});
export type Manifest = v.InferOutput<typeof Manifest>;

const Index = v.object({ manifests: v.pipe(v.array(Descriptor), v.maxLength(1000)) });
export type Index = v.InferOutput<typeof Index>;

const strings = v.nullish(v.array(v.string()));

export const ImageSettings = v.object({
  Env: strings,
  Entrypoint: strings,
  Cmd: strings,
  User: v.nullish(v.string()),
  WorkingDir: v.nullish(v.string()),
  StopSignal: v.nullish(v.string()),
  Volumes: v.nullish(v.record(v.string(), v.unknown())),
  Labels: v.nullish(v.record(v.string(), v.string())),
});

const ConfigFile = v.object({
  os: v.optional(v.string(), "linux"),
  architecture: v.optional(v.string(), ""),
  variant: v.optional(v.string()),
  config: v.nullish(ImageSettings),
  rootfs: v.object({
    diff_ids: v.pipe(v.array(Digest), v.maxLength(layersMax, tooManyLayers)),
  }),
});

/** What an image says about the containers made of it, and what it was built for. */
export type ImageConfig = v.InferOutput<typeof ImageSettings> & {
  architecture: string;
  os: string;
  variant?: string;
};

export const manifestTypes = [
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.v2+json",
];

function parseJson(bytes: Uint8Array, what: string): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new CriError("INVALID_ARGUMENT", `${what} is not JSON`, { cause: error });
  }
}

export function parseAs<Schema extends v.GenericSchema>(
  schema: Schema,
  value: unknown,
  what: string,
): v.InferOutput<Schema> {
  const result = v.safeParse(schema, value);
  if (result.success) return result.output;
  const [issue] = result.issues;
  const where = v.getDotPath(issue) ?? "";
  throw new CriError("INVALID_ARGUMENT", `${what} is not valid: ${where} ${issue.message}`.trim());
}

/** @throws CriError INVALID_ARGUMENT. */
export function parseIndex(bytes: Uint8Array, what: string): Index {
  return parseAs(Index, parseJson(bytes, what), what);
}

/** What lies behind a manifest's digest: one image, or a list of them by platform. */
export function parseManifest(
  bytes: Uint8Array,
  what: string,
): { kind: "image"; manifest: Manifest } | { kind: "index"; index: Index } {
  const value = parseJson(bytes, what);
  if (typeof value === "object" && value !== null) {
    // Told apart by content: the media type is only a claim, and one may not be both.
    if ("manifests" in value && !("layers" in value)) {
      return { kind: "index", index: parseAs(Index, value, what) };
    }
    if ("schemaVersion" in value && value.schemaVersion === 1) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `${what} has the old manifest schema 1; push the image again with a current tool`,
      );
    }
    if ("manifests" in value) {
      throw new CriError("INVALID_ARGUMENT", `${what} is both an index and an image`);
    }
  }
  return { kind: "image", manifest: parseAs(Manifest, value, what) };
}

/** The config, and the diff ids of its layers, lowest first. @throws CriError INVALID_ARGUMENT. */
export function parseConfig(bytes: Uint8Array, what: string) {
  const file = parseAs(ConfigFile, parseJson(bytes, what), what);
  if (file.os !== "linux") {
    throw new CriError("INVALID_ARGUMENT", `${what} is for ${file.os}; this node runs linux`);
  }
  const { architecture, os, variant } = file;
  const config: ImageConfig = { ...file.config, architecture, os, variant };
  return { config, diffIds: file.rootfs.diff_ids };
}

export type Platform = { architecture: string; variants: string[] };

/** This machine's architecture as image configs spell it, best variant first. */
export function hostPlatform(arch: string = process.arch): Platform {
  switch (arch) {
    case "x64":
      return { architecture: "amd64", variants: ["", "v1"] };
    case "arm64":
      return { architecture: "arm64", variants: ["v8", ""] };
    case "arm":
      return { architecture: "arm", variants: ["v7", "v6", "v5", ""] };
    default:
      return { architecture: arch, variants: [""] };
  }
}

/** The index's entry for a platform. @throws CriError NOT_FOUND that lists what there is. */
export function choosePlatform(index: Index, platform: Platform, what: string): Descriptor {
  const linux = index.manifests.filter((entry) => (entry.platform?.os ?? "linux") === "linux");
  for (const variant of platform.variants) {
    const match = linux.find(
      ({ platform: has }) =>
        has?.architecture === platform.architecture && (has.variant ?? "") === variant,
    );
    if (match !== undefined) return match;
  }
  // A list of one image without a platform means that image.
  if (linux.length === 1 && !linux[0]!.platform?.architecture) return linux[0]!;
  const there = index.manifests
    .map(({ platform: has }) => [has?.os, has?.architecture, has?.variant].filter(Boolean))
    .filter((parts) => parts.length > 0 && !parts.includes("unknown"))
    .map((parts) => parts.join("/"));
  throw new CriError(
    "NOT_FOUND",
    `${what} has no image for linux/${platform.architecture}; it has ${there.join(", ") || "none"}`,
  );
}

/** The chain id names a layer together with all layers below it (OCI image-spec, config.md). */
export function chainIds(diffIds: string[]): string[] {
  const chain: string[] = [];
  for (const diffId of diffIds) {
    const below = chain.at(-1);
    chain.push(below === undefined ? diffId : digestOf(Buffer.from(`${below} ${diffId}`)));
  }
  return chain;
}

export function digestOf(bytes: Uint8Array, like = "sha256:"): string {
  const algorithm = like.startsWith("sha512:") ? "sha512" : "sha256";
  return `${algorithm}:${createHash(algorithm).update(bytes).digest("hex")}`;
}
