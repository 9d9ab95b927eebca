// Fetches an image's manifest for this platform and its config from a registry; layers follow later.
import { activity } from "../base/activity.ts";
import { step } from "../base/failpoints.ts";
import type { RegistryAuth } from "../registry/credentials.ts";
import type { RegistryOptions } from "../registry/resolve_endpoints.ts";
import { platformManifest } from "./platform_manifest.ts";
import { configBytesMax, type Manifest } from "./manifest.ts";
import type { Reference } from "../registry/reference.ts";
import type { LayerDescriptor } from "../layer/processor_choice.ts";
import type { LayerWant } from "../layer/layer_maker.ts";
import type { ImageOrigin } from "./image_origin.ts";
import type { ImageSource } from "./records.ts";
import { fetchBlob, fetchManifest, fetchUnlessKnown } from "../registry/distribution.ts";
import { openPullSession, usesSecrets, type PullSession } from "../registry/pull_session.ts";
import type { Verification } from "./verifiers.ts";

/** An image to register (register.ts), with the sources of its layers. */
export type NewImage = {
  id: string;
  config: Buffer;
  repoTags: string[];
  repoDigests: string[];
  layers: (LayerDescriptor & Pick<LayerWant, "source">)[];
  source: ImageSource;
  runtimeHandler?: string | undefined;
  /** Of an image that was pulled. */
  origin?: ImageOrigin;
  /** Names the image in messages. */
  what: string;
};

export type FetchOptions = {
  registry: RegistryOptions;
  auth: RegistryAuth | undefined;
  /** Programs that must accept the image. */
  verification?: Verification | undefined;
  signal: AbortSignal;
};

/** An image whose manifest the node already has, as this pull names it. */
export type KnownImage = Pick<NewImage, "repoTags" | "repoDigests"> & {
  source: ImageSource;
  origin: Omit<ImageOrigin, "manifests">;
};

/**
 * @throws CriError of the registry's response, DATA_LOSS, NOT_FOUND for this platform, or UNKNOWN for an image
 * that was not verified.
 */
export async function fetchImage(ref: Reference, options: FetchOptions): Promise<NewImage> {
  const resolved = await phase("resolve", async () => {
    const session = await openPullSession(ref, options.registry, options);
    return { session, top: await fetchManifest(session, ref, options.signal) };
  });
  return await fetchResolved(ref, resolved, options);
}

/** Fetches an image unless isKnown() accepts its manifest's digest; asks no verifiers. @throws as fetchImage() does. */
export async function fetchNewImage(
  ref: Reference,
  options: Omit<FetchOptions, "verification"> & { isKnown: (digest: string) => Promise<boolean> },
): Promise<NewImage | KnownImage> {
  const { session, top } = await phase("resolve", async () => {
    const session = await openPullSession(ref, options.registry, options);
    return { session, top: await fetchUnlessKnown(session, ref, options) };
  });
  if (top.bytes === undefined) return namesOf(ref, session, top.digest);
  return await fetchResolved(ref, { session, top }, options);
}

function phase<T>(name: string, work: () => Promise<T>): Promise<T> {
  return activity("pull", { phase: name }, work);
}

function namesOf(ref: Reference, session: PullSession, digest: string): KnownImage {
  const repository = `${ref.domain}/${ref.path}`;
  return {
    repoTags: ref.digest === undefined ? [ref.name] : [],
    repoDigests: [`${repository}@${digest}`],
    source: { kind: "registry", name: ref.name, host: session.servedBy },
    origin: {
      repository,
      tags: ref.tag === undefined ? [] : [ref.tag],
      digest,
      isPrivate: usesSecrets(session),
    },
  };
}

async function fetchResolved(
  ref: Reference,
  { session, top }: { session: PullSession; top: { bytes: Buffer; digest: string } },
  { signal, verification }: Pick<FetchOptions, "signal" | "verification">,
): Promise<NewImage> {
  if (verification !== undefined) {
    const { verifyImage } = await import("./verifiers.ts");
    const image = { name: ref.name, top, session };
    const verify = () => step("image-verify", () => verifyImage(image, verification, signal));
    await phase("verify", verify);
  }
  const manifests = { [top.digest]: top.bytes.toString("base64") };
  const onManifest = (digest: string, bytes: Buffer) => {
    manifests[digest] = bytes.toString("base64");
  };
  const { manifest, config } = await phase("config", async () => {
    const manifest = await imageManifest(session, top, { what: ref.name, signal, onManifest });
    const limits = { bytesMax: configBytesMax, signal };
    return { manifest, config: await fetchBlob(session, manifest.config, limits) };
  });
  const names = namesOf(ref, session, top.digest);
  return {
    ...names,
    id: manifest.config.digest,
    config,
    layers: manifest.layers.map((layer) => ({ ...layer, source: { kind: "registry", session } })),
    origin: { ...names.origin, manifests },
    what: ref.name,
  };
}

type ManifestOptions = {
  what: string;
  signal: AbortSignal;
  /** Gets each manifest that is fetched. */
  onManifest?: (digest: string, bytes: Buffer) => void;
};

/** Returns this platform's manifest of the index `top`, which may also be a manifest. @throws NOT_FOUND. */
export async function imageManifest(
  session: PullSession,
  top: { bytes: Buffer; digest: string },
  { what, signal, onManifest = () => {} }: ManifestOptions,
): Promise<Manifest> {
  return await platformManifest(top.bytes, what, {
    manifest: async (digest) => {
      const { bytes } = await fetchManifest(session, { digest }, signal);
      onManifest(digest, bytes);
      return bytes;
    },
    config: (config) => fetchBlob(session, config, { bytesMax: configBytesMax, signal }),
  });
}
