// From a name to the pieces of an image: manifest, platform, config; layers are fetched later.
import type { RegistryAuth } from "../registry/credentials.ts";
import type { RegistryOptions } from "../registry/hosts.ts";
import { imageFor } from "./index_choice.ts";
import { configBytesMax, type Manifest } from "./manifest.ts";
import type { Reference } from "../registry/reference.ts";
import type { LayerDescriptor } from "../layer/processor_choice.ts";
import type { LayerWant } from "../layer/layer_maker.ts";
import type { ImageSource } from "./records.ts";
import { fetchBlob, fetchManifest } from "../registry/distribution.ts";
import { openSession, type Session } from "../registry/pull_session.ts";
import { hostOf } from "../registry/transfer.ts";

/** What the store needs to know to make an image. */
export type NewImage = {
  id: string;
  config: Buffer;
  repoTags: string[];
  repoDigests: string[];
  layers: (LayerDescriptor & Pick<LayerWant, "source">)[];
  source: ImageSource;
  runtimeHandler?: string | undefined;
  what: string;
};

export type FetchOptions = {
  registry: RegistryOptions;
  auth: RegistryAuth | undefined;
  signal: AbortSignal;
};

/** @throws CriError of the registry's answer, DATA_LOSS, or NOT_FOUND for this platform. */
export async function fetchImage(ref: Reference, options: FetchOptions): Promise<NewImage> {
  const { signal } = options;
  const session = await openSession(ref, options.registry, options);
  const top = await fetchManifest(session, ref, signal);
  const manifest = await imageManifest(session, top, { what: ref.name, signal });
  const { digest } = manifest.config;
  const config = await fetchBlob(session, manifest.config, { bytesMax: configBytesMax, signal });
  return {
    id: digest,
    config,
    repoTags: ref.digest === undefined ? [ref.name] : [],
    repoDigests: [`${ref.domain}/${ref.path}@${top.digest}`],
    layers: manifest.layers.map((layer) => ({
      ...layer,
      source: { kind: "registry", session },
    })),
    source: {
      kind: "registry",
      name: ref.name,
      host: hostOf(session.endpoints[session.answered]!.url),
    },
    what: ref.name,
  };
}

/** The manifest itself, or of an index the one of this platform. @throws CriError NOT_FOUND. */
export async function imageManifest(
  session: Session,
  top: { bytes: Buffer; digest: string },
  { what, signal }: { what: string; signal: AbortSignal },
): Promise<Manifest> {
  return await imageFor(top.bytes, what, {
    manifest: async (digest) => (await fetchManifest(session, { digest }, signal)).bytes,
    config: (config) => fetchBlob(session, config, { bytesMax: configBytesMax, signal }),
  });
}
