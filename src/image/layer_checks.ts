// Whether the layers on this node still are what was unpacked, and how one that is not is made again.
import { CriError, messageOf } from "../base/errors.ts";
import type { UnpackPool } from "../layer/unpack_pool.ts";
import type { LayerMaker, LayerWant } from "../layer/layer_maker.ts";
import type { LayerStore } from "../layer/layer_store.ts";
import { type NewImage } from "./pull.ts";
import type { LayerDescriptor } from "../layer/processor_choice.ts";
import type { ImageRecord } from "./records.ts";
import type { LayerSource } from "../layer/job_unpack.ts";

export type LayerCheck = {
  chainId: string;
  /** A name, or else the id, of each image that has it. */
  images: string[];
  /** unknown: an earlier build unpacked it and wrote down nothing. */
  state: "intact" | "damaged" | "repaired" | "unknown";
  /** Of all that differs, the first. */
  differences: string[];
  differencesCount: number;
  /** Why it is not repaired, or what was. */
  note: string;
};

export type LayerCheckParts = {
  layers: LayerStore;
  maker: LayerMaker;
  helpers: UnpackPool;
  /** An image as a registry has it. */
  fetch: (reference: string, signal: AbortSignal) => Promise<NewImage>;
  /** How many containers have the layer mounted. */
  mounts: (chainId: string) => number;
};

export type CheckOptions = { repair: boolean; signal: AbortSignal };

/** Each layer of the images once, lowest first. */
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
      const having = images.filter(({ layers }) => layers.includes(chainId));
      yield await checkLayer(parts, { chainId, index, having }, options);
    }
  }
}

type Place = { chainId: string; index: number; having: ImageRecord[] };

async function checkLayer(
  parts: LayerCheckParts,
  { chainId, index, having }: Place,
  { repair, signal }: CheckOptions,
): Promise<LayerCheck> {
  const images = namesOf(having);
  const check: LayerCheck = {
    chainId,
    images,
    state: "intact",
    differences: [],
    differencesCount: 0,
    note: "",
  };
  const manifest = parts.layers.manifest(chainId);
  if (manifest === undefined) {
    const note = "an earlier build unpacked it: remove its images and pull them again";
    return { ...check, state: "unknown", note };
  }
  const folder = parts.layers.tree(chainId);
  try {
    const found = await parts.helpers.run(
      { kind: "verify", folder, listing: manifest },
      { signal },
    );
    if (found.count === 0) return check;
    check.differences = found.first;
    check.differencesCount = found.count;
  } catch (error) {
    if (signal.aborted) throw error;
    check.differences = [`its list cannot be read: ${messageOf(error)}`];
    check.differencesCount = 1;
  }
  check.state = "damaged";
  if (!repair) return check;
  try {
    check.note = await makeAgain(parts, { chainId, index, having }, signal);
    return { ...check, state: "repaired" };
  } catch (error) {
    if (signal.aborted) throw error;
    return { ...check, note: messageOf(error) };
  }
}

function namesOf(images: ImageRecord[]): string[] {
  return images.map(({ repoTags, repoDigests, id }) => repoTags[0] ?? repoDigests[0] ?? id);
}

/** @returns from where. */
async function makeAgain(parts: LayerCheckParts, place: Place, signal: AbortSignal) {
  assertUnused(parts, place.chainId);
  const failures: string[] = [];
  for await (const { wants, from } of origins(parts, place, { signal, failures })) {
    const { helpers, maker } = parts;
    const before = () => assertUnused(parts, place.chainId);
    try {
      await maker.remake(wants, place.index, {
        helpers,
        signal,
        onLayer: () => {},
        beforeReplace: before,
      });
      return `from ${from}`;
    } catch (error) {
      if (signal.aborted) throw error;
      failures.push(messageOf(error));
    }
  }
  const message = `it cannot be had again: ${failures.join("; ")}; remove its images (${namesOf(place.having).join(", ")}), then pull or load them again`;
  throw new CriError("UNAVAILABLE", message);
}

/** A mounted layer must not change under its containers. */
function assertUnused(parts: LayerCheckParts, chainId: string): void {
  const mounts = parts.mounts(chainId);
  if (mounts === 0) return;
  const message = `${mounts} containers have it mounted: remove them first`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** Where the layer may come from: the blob that was kept, then the registries of its images. */
async function* origins(
  { layers, fetch }: LayerCheckParts,
  { chainId, index, having }: Place,
  { signal, failures }: { signal: AbortSignal; failures: string[] },
): AsyncGenerator<{ wants: LayerWant[]; from: string }> {
  const blob = layers.blob(chainId);
  if (blob !== undefined) {
    const { path, digest, size } = blob;
    const part = () => ({
      mediaType: "",
      digest,
      size,
      source: { kind: "file", path, offset: 0 } as const,
    });
    yield { wants: wantsOf(layers, having[0]!, part), from: "its kept blob" };
  }
  for (const image of having) {
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
  if (having.every(({ repoDigests }) => repoDigests.length === 0)) {
    failures.push("its images came from files");
  }
}

function wantsOf(
  layers: LayerStore,
  image: ImageRecord,
  part: (at: number) => LayerDescriptor & { source: LayerSource },
): LayerWant[] {
  return image.layers.map((chainId, at) => ({
    ...part(at),
    chainId,
    diffId: layers.diffIdOf(chainId) ?? "",
  }));
}
