// The node's images: pulled from registries or loaded from files, mounted for containers, removed.
import { mkdir, rm } from "node:fs/promises";
import { realpathSync } from "node:fs";
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import type { Log } from "../base/log.ts";
import { step } from "../base/failpoints.ts";
import { jsonText } from "../base/json.ts";
import { readArchive } from "./archive.ts";
import type { RegistryAuth } from "../registry/credentials.ts";
import { UnpackHelpers } from "../layer/helpers.ts";
import type { RegistryOptions } from "../registry/hosts.ts";
import { CountedFlight } from "../base/single_flight.ts";
import {
  asFull,
  LayerMaker,
  type LayerMakerOptions,
  type LayerWant,
} from "../layer/layer_maker.ts";
import { checkLayers, type CheckOptions, type LayerCheck } from "./layer_checks.ts";
import { LayerSync } from "../layer/layer_sync.ts";
import { LayerStore, shortId, type LayerFacts } from "../layer/layers.ts";
import { imagesOfArchive } from "./load.ts";
import { chainIds, parseConfig } from "./manifest.ts";
import { mountedOverlays } from "../layer/overlay.ts";
import { type ImageProgress, LayerBoard, type OnProgress } from "../layer/layer_progress.ts";
import { fetchImage, type NewImage } from "./pull.ts";
import { pinnedBy } from "./pinned.ts";
import { ImageRecords, type ImageRecord } from "./records.ts";
import { parseReference } from "../registry/reference.ts";
import { checkRegistry, type EndpointCheck } from "./pull_check.ts";
import { Roots, type RootParts } from "./roots.ts";
import { savedImages, writeArchive } from "./save.ts";
import { openStorage, type Storage, type StorageOptions } from "../layer/storage.ts";
import { Semaphore } from "../base/semaphore.ts";

export type { RegistryAuth } from "../registry/credentials.ts";
export type { LayerCheck } from "./layer_checks.ts";
export type { RegistryOptions } from "../registry/hosts.ts";
export type { ImageProgress, LayerState } from "../layer/layer_progress.ts";
export type { ImageConfig } from "./manifest.ts";
export type { ImageRecord } from "./records.ts";
export type { EndpointCheck } from "./pull_check.ts";
export type { RootfsOwner } from "../layer/rootfs.ts";

export type ImageStoreOptions = {
  graph: string;
  log: Log;
  registry: RegistryOptions;
  layers: Omit<LayerMakerOptions, "log">;
  storage: StorageOptions;
  /** The argv that runs our own program, for the unpacking helpers. */
  /** Names, or patterns, of images that the kubelet must not collect (pinned.ts). */
  pinned?: string[];
};

export type PullOptions = {
  auth?: RegistryAuth;
  /** The handler that it is for, to be remembered; absent: the default one. */
  runtimeHandler?: string;
} & WorkOptions;

type WorkOptions = { signal: AbortSignal; onProgress?: OnProgress };

export async function openImageStore(options: ImageStoreOptions): Promise<ImageStore> {
  await mkdir(options.graph, { recursive: true, mode: 0o700 });
  // As the kernel names it: mounts are found again by their paths.
  const graph = realpathSync(options.graph);
  await mkdir(join(graph, "layers"), { recursive: true, mode: 0o700 });
  const records = await ImageRecords.open(join(graph, "images"), options.log);
  const storage = await openStorage(join(graph, "layers"), options.storage, options.log);
  const mounts = mountedOverlays(graph);
  const layers = await LayerStore.open(join(graph, "layers"), {
    driver: storage.driver,
    mounted: new Set([...mounts.values()].flat()),
    log: options.log,
  });
  for (const { id, layers: chain, repoTags } of records.list()) {
    if (chain.every((chainId) => layers.has(chainId))) continue;
    options.log.warn("image dropped: a layer of it is missing", { image: repoTags[0] ?? id });
    await records.remove(id);
  }
  const store = new ImageStore(options, { graph, records, layers, storage, mounts });
  await store.collectGarbage();
  store.sync.begin();
  return store;
}

type StoreParts = {
  graph: string;
  records: ImageRecords;
  layers: LayerStore;
  storage: Storage;
  mounts: Map<string, string[]>;
};

export class ImageStore implements AsyncDisposable {
  readonly #options: ImageStoreOptions;
  readonly #records: ImageRecords;
  readonly #layers: LayerStore;
  readonly storage: Storage;
  readonly #maker: LayerMaker;
  readonly #pulls = new CountedFlight<ImageRecord, ImageProgress>("pull");
  /** Whether the kubelet's garbage collection is to leave an image alone. */
  readonly pinned: (image: ImageRecord) => boolean;
  readonly sync: LayerSync;
  readonly #roots: Roots;
  /** Layers of images that are being made, by how many. */
  readonly #wanted = new Map<string, number>();
  /** Records are written one after another. */
  readonly #writing = new Semaphore(1);
  readonly #closing = new AbortController();

  constructor(options: ImageStoreOptions, parts: StoreParts) {
    this.#options = options;
    this.#records = parts.records;
    this.#layers = parts.layers;
    this.storage = parts.storage;
    this.#maker = new LayerMaker(parts.layers, { ...options.layers, log: options.log });
    const { graph } = options;
    const startHelpers = () => this.#startHelpers();
    this.sync = new LayerSync(parts.layers, startHelpers, options.log);
    this.#roots = new Roots({ ...parts, graph, realGraph: parts.graph, startHelpers });
    this.pinned = pinnedBy(options.pinned ?? []);
  }

  list(): ImageRecord[] {
    return this.#records.list();
  }

  /**
   * By name, tag, digest, name@digest, id, or the start of an id.
   * @throws CriError INVALID_ARGUMENT when several ids start so.
   */
  find(ref: string): ImageRecord | undefined {
    return this.#records.find(ref);
  }

  /** Of all layers together, each content counted once; inodes: undefined where some layer's are not known. */
  usage(): { bytes: bigint; inodes: bigint | undefined } {
    return this.#layers.usageOf(this.#layers.ids());
  }

  /** An image's layers, lowest first, and its whole config as text; "" where that is not known. */
  async detailsOf(image: ImageRecord): Promise<{ layers: LayerFacts[]; config: string }> {
    const config = await this.#records.configOf(image.id);
    const layers = image.layers.flatMap((id) => this.#layers.factsOf(id) ?? []);
    return { layers, config: config?.toString("utf8") ?? "" };
  }

  /** Fetches what is missing; a second pull of the same name joins the first. */
  async pull(ref: string, options: PullOptions): Promise<ImageRecord> {
    const reference = parseReference(ref);
    const { auth, runtimeHandler } = options;
    // Somebody without the credentials must not get the image of somebody with them.
    const key = jsonText([reference.name, auth ?? null, runtimeHandler ?? null]);
    return await this.#pulls.join(key, options, async (signal, onProgress) => {
      const startMs = performance.now();
      const image = await fetchImage(reference, {
        registry: this.#options.registry,
        auth,
        signal,
      });
      const record = await this.#publish({ ...image, runtimeHandler }, { signal, onProgress });
      const ms = Math.round(performance.now() - startMs);
      this.#options.log.info("image pulled", { image: reference.name, id: record.id, ms });
      return record;
    });
  }

  /** Tries every place that a pull of the image would ask; nothing is kept. */
  checkRegistry(
    ref: string,
    { auth, signal }: Omit<PullOptions, "onProgress">,
  ): AsyncGenerator<EndpointCheck, void, undefined> {
    return checkRegistry(parseReference(ref), { registry: this.#options.registry, auth, signal });
  }

  /** Registers the images of an archive or OCI layout folder on this host. */
  async load(path: string, o: { name?: string } & WorkOptions): Promise<ImageRecord[]> {
    const name = o.name ? parseReference(o.name).name : undefined;
    const scratch = await this.#layers.makeScratch();
    try {
      const found = await this.#readArchive(path, scratch, o.signal);
      const loaded: ImageRecord[] = [];
      for (const image of imagesOfArchive(found, path, name)) {
        const record = await this.#publish(image, o);
        const known = record.repoTags[0] ?? "without a name";
        this.#options.log.info("image loaded", { image: known, id: record.id, path });
        loaded.push(record);
      }
      return loaded;
    } finally {
      await rm(scratch, { recursive: true, force: true });
    }
  }

  async #readArchive(path: string, scratch: string, signal: AbortSignal) {
    await using helpers = this.#startHelpers();
    const { ratioMax } = this.#options.layers.limits;
    const inflate = (packed: string, target: string) =>
      helpers.run({ kind: "inflate", path: packed, target, ratioMax }, { signal });
    return await readArchive(path, { scratch, inflate, signal });
  }

  /**
   * Writes images into an archive on this host (save.ts): under the tag that they are asked for by, else
   * under all of theirs. @throws CriError NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION.
   */
  async save(refs: string[], o: { path: string; force: boolean } & WorkOptions): Promise<void> {
    const found = refs.map((ref) => ({ ref, record: this.#get(ref) }));
    const chains = found.flatMap(({ record }) => record.layers);
    this.#want(chains, 1);
    try {
      const images = await savedImages(found, { records: this.#records, layers: this.#layers });
      await using helpers = this.#startHelpers();
      const { onProgress = () => {}, ...rest } = o;
      await writeArchive(images, { ...rest, helpers, onProgress });
      this.#options.log.info("images saved", { images: refs.join(" "), path: o.path });
    } finally {
      this.#want(chains, -1);
      await this.collectGarbage();
    }
  }

  /** @throws CriError NOT_FOUND. */
  #get(ref: string): ImageRecord {
    const record = this.find(ref);
    if (record !== undefined) return record;
    throw new CriError("NOT_FOUND", `there is no image ${ref} on this node: pull it first`);
  }

  /** What the removal of these images sets free: layers that nothing else has. */
  freedBy(ids: ReadonlySet<string>): bigint {
    const [going, staying] = [new Set<string>(), new Set<string>()];
    for (const { id, layers } of this.list()) {
      for (const layer of layers) (ids.has(id) ? going : staying).add(layer);
    }
    const mounted = this.#roots.used();
    for (const id of going) if (mounted.has(shortId(id))) staying.add(id);
    return this.#layers.usageOf([...going, ...staying]).bytes - this.#layers.usageOf(staying).bytes;
  }

  /** Removes the image with all its names; one that is not there is no error. */
  async remove(ref: string): Promise<void> {
    const image = this.find(ref);
    if (image === undefined) return;
    await this.#writing.run(this.#closing.signal, () => this.#records.remove(image.id));
    await this.collectGarbage();
    this.#options.log.info("image removed", { image: image.repoTags[0], id: image.id });
  }

  /**
   * Compares layers with what was unpacked: those of the image that ref names, or of all ("").
   * @throws CriError NOT_FOUND.
   */
  async *verify(ref: string, options: CheckOptions): AsyncGenerator<LayerCheck> {
    const images = ref === "" ? this.list() : [this.#get(ref)];
    const chains = images.flatMap(({ layers }) => layers);
    await using helpers = this.#startHelpers();
    this.#want(chains, 1); // none of them goes meanwhile
    try {
      const { layers, maker } = { layers: this.#layers, maker: this.#maker };
      const registry = this.#options.registry;
      const fetch = (reference: string, signal: AbortSignal) =>
        fetchImage(parseReference(reference), { registry, auth: undefined, signal });
      const mounts = (chainId: string) => this.#roots.countOf(chainId);
      yield* checkLayers({ layers, maker, helpers, fetch, mounts }, images, options);
    } finally {
      this.#want(chains, -1);
      await this.collectGarbage();
      this.sync.begin();
    }
  }

  /** @returns the path of the mounted root; dir is the container's folder. */
  async mountRootfs(
    image: ImageRecord,
    { signal, ...parts }: Omit<RootParts, "signal"> & { signal?: AbortSignal },
  ): Promise<string> {
    const ends = [this.#closing.signal, ...(signal === undefined ? [] : [signal])];
    try {
      return await this.#roots.mount(image, { ...parts, signal: AbortSignal.any(ends) });
    } catch (error) {
      await this.unmountRootfs(parts.dir);
      throw error;
    }
  }

  /** Unmounts and removes what mountRootfs made; nothing there is no error. */
  async unmountRootfs(dir: string): Promise<void> {
    if (await this.#roots.unmount(dir)) await this.collectGarbage();
  }

  #startHelpers(): UnpackHelpers {
    const { driver } = this.storage;
    return new UnpackHelpers(driver === "native" ? "native" : "overlay");
  }

  async #publish(image: NewImage, o: WorkOptions): Promise<ImageRecord> {
    const { config, diffIds } = parseConfig(image.config, `the config of ${image.what}`);
    if (diffIds.length !== image.layers.length) {
      const message = `${image.what} has ${image.layers.length} layers and ${diffIds.length} diff ids`;
      throw new CriError("INVALID_ARGUMENT", message);
    }
    const chain = chainIds(diffIds);
    const wants = image.layers.map((layer, index) => ({
      ...layer,
      diffId: diffIds[index]!,
      chainId: chain[index]!,
    }));
    this.#want(chain, 1);
    try {
      const name = image.repoTags[0] ?? image.repoDigests[0] ?? image.id;
      await step("image-layers", () => this.#fetchLayers(name, wants, o));
      const sizes = chain.map((chainId) => BigInt(this.#layers.sizeOf(chainId)));
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
      const added = await step("image-register", () =>
        this.#writing.run(o.signal, () => this.#records.add(record, image.config)),
      );
      this.sync.begin();
      return added;
    } catch (error) {
      throw asFull(error);
    } finally {
      this.#want(chain, -1);
      await this.collectGarbage();
    }
  }

  async #fetchLayers(name: string, wants: LayerWant[], o: WorkOptions): Promise<void> {
    const shown = wants.map(({ digest, diffId, size }) => ({
      digest: digest === "" ? diffId : digest,
      totalBytes: size,
    }));
    const board = new LayerBoard(name, shown, o.onProgress ?? (() => {}));
    const onLayer = board.set.bind(board);
    await using helpers = this.#startHelpers();
    await this.#maker.ensure(wants, { helpers, signal: o.signal, onLayer });
  }

  /** Keeps layers that no image names yet from being collected, until as often taken back. */
  #want(chain: string[], change: 1 | -1): void {
    for (const id of chain) {
      const count = (this.#wanted.get(id) ?? 0) + change;
      if (count > 0) this.#wanted.set(id, count);
      else this.#wanted.delete(id);
    }
  }

  /** Removes layers that no image, no mounted root and no pull needs. */
  async collectGarbage(): Promise<void> {
    const ofImages = new Set(this.list().flatMap(({ layers }) => layers));
    const isNeeded = (id: string) => ofImages.has(id) || this.#wanted.has(id);
    await this.#layers.collect(this.#roots.used(), isNeeded);
  }

  /** Ends what is under way; mounts stay. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort(new CriError("CANCELLED", "the daemon stops"));
    await this.#pulls.end(new CriError("CANCELLED", "the daemon stops"));
    await this.sync.end();
  }
}
