// Verifies unpacked layers against their manifests and repairs damaged ones from a blob or a registry.
import { CriError, messageOf } from "../base/errors.ts";
import type { UnpackPool } from "../layer/unpack_pool.ts";
import type { LayerMaker, LayerWant } from "../layer/layer_maker.ts";
import type { LayerStore } from "../layer/layer_store.ts";
import type { NewImage } from "./pull.ts";
import type { LayerDescriptor } from "../layer/processor_choice.ts";
import type { ImageRecord } from "./records.ts";
import type { LayerSource } from "../layer/job_unpack.ts";

export type LayerCheck = {
  chainId: string;
  /** A name, or else the id, of each image with this layer. */
  images: string[];
  /** unknown: an earlier build unpacked it without writing a manifest. */
  state: "intact" | "damaged" | "repaired" | "unknown";
  /** The first differences. */
  differences: string[];
  differencesCount: number;
  /** Why it was not repaired, or from where it was. */
  note: string;
};

type LayerCheckParts = {
  layers: LayerStore;
  maker: LayerMaker;
  helpers: UnpackPool;
  /** Fetches an image's manifest from its registry. */
  fetch: (reference: string, signal: AbortSignal) => Promise<NewImage>;
  /** Counts the containers with the layer mounted. */
  mounts: (chainId: string) => number;
};

export type CheckOptions = { repair: boolean; signal: AbortSignal };

/** Checks each layer of the images once, lowest first. */
export async function* checkLayers(
  parts: LayerCheckParts,
  images: ImageRecord[],
  options: CheckOptions,
): AsyncGenerator<LayerCheck> {
  const done = new Set<string>();
  for (const image of images) {
    for (const [index, chainId] of image.layers.entries()) {
      if (done.has(chainId)) continue;
      done.add(chainId);
      const users = images.filter(({ layers }) => layers.includes(chainId));
      yield await checkLayer(parts, { chainId, index, users }, options);
    }
  }
}

type Place = { chainId: string; index: number; users: ImageRecord[] };

async function checkLayer(
  parts: LayerCheckParts,
  { chainId, index, users }: Place,
  { repair, signal }: CheckOptions,
): Promise<LayerCheck> {
  const images = namesOf(users);
  const none = { differences: [], differencesCount: 0, note: "" };
  const check: LayerCheck = { chainId, images, state: "intact", ...none };
  const listing = parts.layers.manifest(chainId);
  if (listing === undefined) {
    const note = "an earlier build unpacked it: remove its images and pull them again";
    return { ...check, state: "unknown", note };
  }
  const folder = parts.layers.tree(chainId);
  try {
    const found = await parts.helpers.run({ kind: "verify", folder, listing }, { signal });
    if (found.count === 0) return check;
    check.differences = found.first;
    check.differencesCount = found.count;
  } catch (error) {
    if (signal.aborted) throw error;
    check.differences = [`its manifest cannot be read: ${messageOf(error)}`];
    check.differencesCount = 1;
  }
  check.state = "damaged";
  if (!repair) return check;
  try {
    check.note = await repairLayer(parts, { chainId, index, users }, signal);
    return { ...check, state: "repaired" };
  } catch (error) {
    if (signal.aborted) throw error;
    return { ...check, note: messageOf(error) };
  }
}

function namesOf(images: ImageRecord[]): string[] {
  return images.map(({ repoTags, repoDigests, id }) => repoTags[0] ?? repoDigests[0] ?? id);
}

/** Returns the source of the repair. */
async function repairLayer(parts: LayerCheckParts, place: Place, signal: AbortSignal) {
  assertUnused(parts, place.chainId);
  const failures: string[] = [];
  for await (const { wants, from } of sourcesOf(parts, place, { signal, failures })) {
    const { helpers, maker } = parts;
    const beforeReplace = () => assertUnused(parts, place.chainId);
    try {
      const o = { helpers, signal, onLayer: () => {}, beforeReplace };
      await maker.remake(wants, place.index, o);
      return `from ${from}`;
    } catch (error) {
      if (signal.aborted) throw error;
      failures.push(messageOf(error));
    }
  }
  const message = `repair failed: ${failures.join("; ")}; remove its images (${namesOf(place.users).join(", ")}), then pull or load them again`;
  throw new CriError("UNAVAILABLE", message);
}

/** A mounted layer must not change while containers run on it. */
function assertUnused(parts: LayerCheckParts, chainId: string): void {
  const mounts = parts.mounts(chainId);
  if (mounts === 0) return;
  const message = `${mounts} containers have it mounted: remove them first`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** Yields the sources of a layer: its kept blob, then the registries of its images. */
async function* sourcesOf(
  { layers, fetch }: LayerCheckParts,
  { chainId, index, users }: Place,
  { signal, failures }: { signal: AbortSignal; failures: string[] },
): AsyncGenerator<{ wants: LayerWant[]; from: string }> {
  const blob = layers.blob(chainId);
  if (blob !== undefined) {
    const { path, digest, size } = blob;
    const source = { kind: "file", path, offset: 0 } as const;
    const part = () => ({ mediaType: "", digest, size, source });
    yield { wants: wantsOf(layers, users[0]!, part), from: "its kept blob" };
  }
  for (const image of users) {
    for (const reference of image.repoDigests) {
      try {
        const found = await fetch(reference, signal);
        if (found.id !== image.id || found.layers.length <= index) {
          throw new CriError("DATA_LOSS", `${reference} is another image now`);
        }
        yield { wants: wantsOf(layers, image, (at) => found.layers[at]!), from: reference };
      } catch (error) {
        if (signal.aborted) throw error;
        failures.push(messageOf(error));
      }
    }
  }
  if (users.every(({ repoDigests }) => repoDigests.length === 0)) {
    failures.push("its images came from files");
  }
}

function wantsOf(
  layers: LayerStore,
  image: ImageRecord,
  part: (at: number) => LayerDescriptor & { source: LayerSource },
): LayerWant[] {
  return image.layers.map((chainId, at) => {
    return { ...part(at), chainId, diffId: layers.diffIdOf(chainId) ?? "" };
  });
}
