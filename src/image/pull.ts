// Fetches an image's manifest for this platform and its config from a registry; layers follow later.
import type { RegistryAuth } from "../registry/credentials.ts";
import type { RegistryOptions } from "../registry/resolve_endpoints.ts";
import { platformManifest } from "./platform_manifest.ts";
import { configBytesMax, type Manifest } from "./manifest.ts";
import type { Reference } from "../registry/reference.ts";
import type { LayerDescriptor } from "../layer/processor_choice.ts";
import type { LayerWant } from "../layer/layer_maker.ts";
import type { ImageSource } from "./records.ts";
import { fetchBlob, fetchManifest } from "../registry/distribution.ts";
import { openPullSession, type PullSession } from "../registry/pull_session.ts";
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
  /** Names it in messages. */
  what: string;
};

export type FetchOptions = {
  registry: RegistryOptions;
  auth: RegistryAuth | undefined;
  /** Programs that must accept the image. */
  verification?: Verification | undefined;
  signal: AbortSignal;
};

/**
 * @throws CriError of the registry's response, DATA_LOSS, NOT_FOUND for this platform, or UNKNOWN for an image
 * that was not verified.
 */
export async function fetchImage(ref: Reference, options: FetchOptions): Promise<NewImage> {
  const { signal, verification } = options;
  const session = await openPullSession(ref, options.registry, options);
  const top = await fetchManifest(session, ref, signal);
  if (verification !== undefined) {
    const { verifyImage } = await import("./verifiers.ts");
    await verifyImage({ name: ref.name, top, session }, verification, signal);
  }
  const manifest = await imageManifest(session, top, { what: ref.name, signal });
  const { digest } = manifest.config;
  const config = await fetchBlob(session, manifest.config, { bytesMax: configBytesMax, signal });
  return {
    id: digest,
    config,
    repoTags: ref.digest === undefined ? [ref.name] : [],
    repoDigests: [`${ref.domain}/${ref.path}@${top.digest}`],
    layers: manifest.layers.map((layer) => ({ ...layer, source: { kind: "registry", session } })),
    source: { kind: "registry", name: ref.name, host: session.servedBy },
    what: ref.name,
  };
}

/** Returns this platform's manifest of the index `top`, which may also be a manifest. @throws NOT_FOUND. */
export async function imageManifest(
  session: PullSession,
  top: { bytes: Buffer; digest: string },
  { what, signal }: { what: string; signal: AbortSignal },
): Promise<Manifest> {
  return await platformManifest(top.bytes, what, {
    manifest: async (digest) => (await fetchManifest(session, { digest }, signal)).bytes,
    config: (config) => fetchBlob(session, config, { bytesMax: configBytesMax, signal }),
  });
}
