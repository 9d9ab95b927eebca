// Registers an image on the node: makes its missing layers, then writes its record.
import { nowNs } from "../base/clock.ts";
import { CriError } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { Semaphore } from "../base/semaphore.ts";
import { assertMountable } from "../layer/overlay.ts";
import type { Storage } from "../layer/storage_driver.ts";
import type { UnpackPool } from "../layer/unpack_pool.ts";
import { asResourceExhausted } from "../layer/disk_space.ts";
import type { LayerMaker, LayerWant } from "../layer/layer_maker.ts";
import { ProgressTracker, type OnProgress } from "../layer/layer_progress.ts";
import type { LayerStore } from "../layer/layer_store.ts";
import type { LayerGc } from "./layer_gc.ts";
import { chainIds, parseConfig } from "./manifest.ts";
import type { ImageOrigin } from "./image_origin.ts";
import type { KnownImage, NewImage } from "./pull.ts";
import type { ImageRecord, ImageRecords } from "./records.ts";

export type RegisterOptions = { signal: AbortSignal; onProgress?: OnProgress };

type RegistrarParts = {
  layers: LayerStore;
  maker: LayerMaker;
  records: ImageRecords;
  gc: LayerGc;
  /** Keeps origins (image_origin.ts), by which the image can be served to other nodes. */
  keepsOrigins: boolean;
  storage: Pick<Storage, "driver">;
  startHelpers: () => UnpackPool;
};

type WholeImage = {
  record: ImageRecord;
  config: Buffer;
  /** The manifests of the image's origin; absent where origins are not kept. */
  manifests?: ImageOrigin["manifests"];
};

export class Registrar {
  readonly #parts: RegistrarParts;
  /** Serializes writes of records. */
  readonly #writes = new Semaphore(1, "the image records");

  constructor(parts: RegistrarParts) {
    this.#parts = parts;
  }

  async register(image: NewImage, o: RegisterOptions): Promise<ImageRecord> {
    const { layers, gc, storage } = this.#parts;
    const { config, wants } = await layersOf(image);
    if (storage.driver === "overlay2") assertMountable(wants.length, image.what);
    const chain = wants.map(({ chainId }) => chainId);
    await using _ = gc.hold(chain);
    try {
      const name = image.repoTags[0] ?? image.repoDigests[0] ?? image.id;
      await step("image-layers", () => this.#makeLayers(name, wants, o));
      const sizes = chain.map((chainId) => BigInt(layers.sizeOf(chainId)));
      const record: ImageRecord = {
        id: image.id,
        repoTags: image.repoTags,
        repoDigests: image.repoDigests,
        sizeBytes: sizes.reduce((sum, size) => sum + size, BigInt(image.config.length)),
        config,
        layers: chain,
        pulledAtNs: nowNs(),
        source: image.source,
        runtimeHandler: image.runtimeHandler,
      };
      const origin = this.#parts.keepsOrigins ? image.origin : undefined;
      return await step("image-register", () =>
        this.#writes.run(o.signal, () => this.#add(record, image.config, origin)),
      );
    } catch (error) {
      throw asResourceExhausted(error);
    }
  }

  /** Returns the image of a manifest; undefined if anything that a pull of it would leave here is missing. */
  async whole(repository: string, digest: string): Promise<WholeImage | undefined> {
    const { layers, records, keepsOrigins } = this.#parts;
    const name = `${repository}@${digest}`;
    const record = records.list().find(({ repoDigests }) => repoDigests.includes(name));
    if (!record?.layers.every((chainId) => layers.has(chainId))) return undefined;
    const config = await records.configOf(record.id);
    if (config === undefined) return undefined;
    if (!keepsOrigins) return { record, config };
    const known = (await records.originsOf(record.id)).find(
      (one) => one.repository === repository && one.digest === digest,
    );
    return known && { record, config, manifests: known.manifests };
  }

  /** Registers one more pull of an image that is whole; undefined: it no longer is. */
  async renew(
    image: KnownImage & Pick<NewImage, "runtimeHandler">,
    signal: AbortSignal,
  ): Promise<ImageRecord | undefined> {
    const { repoTags, repoDigests, source, runtimeHandler } = image;
    return await step("image-register", () =>
      this.#writes.run(signal, async () => {
        const whole = await this.whole(image.origin.repository, image.origin.digest);
        if (whole === undefined) return undefined;
        const { manifests, record: known } = whole;
        if (!image.origin.isPrivate) await this.#publish(known);
        const origin = manifests && { ...image.origin, manifests };
        const pull = { repoTags, repoDigests, source, runtimeHandler, pulledAtNs: nowNs() };
        const record = { ...whole.record, ...pull };
        return await this.#add(record, whole.config, origin);
      }),
    );
  }

  /** Lifts what restricts the layers of an image that the registry gives without credentials. */
  async #publish({ layers: chain }: ImageRecord): Promise<void> {
    const { layers } = this.#parts;
    for (const chainId of chain) {
      const diffId = layers.diffIdOf(chainId);
      if (diffId !== undefined) await layers.changeAccess(diffId, () => undefined);
    }
  }

  async #add(record: ImageRecord, config: Buffer, origin?: ImageOrigin): Promise<ImageRecord> {
    const { layers, records } = this.#parts;
    const isSynced = (chain: readonly string[]) => chain.every((id) => layers.isSynced(id));
    return await records.add(record, config, { origin, isSynced });
  }

  async remove(id: string, signal: AbortSignal): Promise<void> {
    await this.#writes.run(signal, () => this.#parts.records.remove(id));
    await this.#parts.gc.free(); // the kubelet measures what the removal has freed
  }

  async #makeLayers(name: string, wants: LayerWant[], o: RegisterOptions): Promise<void> {
    const shown = wants.map(({ digest, diffId, size }) => {
      return { digest: digest === "" ? diffId : digest, totalBytes: size ?? 0 };
    });
    const tracker = new ProgressTracker(name, shown, o.onProgress ?? (() => {}));
    const onLayer = tracker.set.bind(tracker);
    await using helpers = this.#parts.startHelpers();
    await this.#parts.maker.ensure(wants, { helpers, signal: o.signal, onLayer });
  }
}

/** Pairs the layers with the config's diff ids. @throws CriError INVALID_ARGUMENT if they do not match. */
export async function layersOf(image: Pick<NewImage, "config" | "layers" | "what">) {
  const { config, diffIds } = await parseConfig(image.config, `the config of ${image.what}`);
  if (diffIds.length !== image.layers.length) {
    const message = `${image.what} has ${image.layers.length} layers and ${diffIds.length} diff ids`;
    throw new CriError("INVALID_ARGUMENT", message);
  }
  const chain = chainIds(diffIds);
  const wants: LayerWant[] = image.layers.map((layer, index) => {
    return { ...layer, diffId: diffIds[index]!, chainId: chain[index]! };
  });
  return { config, wants };
}
