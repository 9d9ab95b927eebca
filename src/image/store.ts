// Stores the node's images: pulls, loads, saves and verifies them, mounts them for containers, removes them.
import { mkdir } from "node:fs/promises";
import { realpathSync } from "node:fs";
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { clip, quoted } from "../base/text.ts";
import type { RegistryAuth } from "../registry/credentials.ts";
import { UnpackPool } from "../layer/unpack_pool.ts";
import type { RegistryOptions } from "../registry/resolve_endpoints.ts";
import { CountedFlight } from "../base/single_flight.ts";
import { LayerMaker, type LayerMakerOptions } from "../layer/layer_maker.ts";
import { LayerGc } from "./layer_gc.ts";
import { checkLayers, type CheckOptions, type LayerCheck } from "./layer_checks.ts";
import { LayerSync } from "../layer/layer_sync.ts";
import { LayerStore, type LayerInfo } from "../layer/layer_store.ts";
import type { ImageProgress } from "../layer/layer_progress.ts";
import { mountedOverlays } from "../layer/overlay.ts";
import type { FetchOptions, KnownImage, NewImage } from "./pull.ts";
import { loggedPull } from "./pull_log.ts";
import { Registrar, type RegisterOptions } from "./register.ts";
import type { ImageServer, MirrorOptions } from "./mirror_server.ts";
import { pinnedBy } from "./pinned.ts";
import { ImageRecords, type ImageRecord } from "./records.ts";
import { parseReference, type Reference } from "../registry/reference.ts";
import type { EndpointCheck } from "./registry_check.ts";
import { RootfsMounts, type RootfsMountOptions, type RootfsMountsParts } from "./rootfs_mounts.ts";
import type { Verification } from "./verifiers.ts";
import { openStorage, type Storage, type StorageOptions } from "../layer/storage_driver.ts";
import { fillLimited } from "../layer/rootfs.ts";
import { removeTree } from "../sys/remove_tree.ts";

export type { RegistryAuth } from "../registry/credentials.ts";
export type { LayerCheck } from "./layer_checks.ts";
export type { ImageProgress, LayerState } from "../layer/layer_progress.ts";
export type { ImageRecord } from "./records.ts";
export type { RootfsOwner } from "../layer/rootfs.ts";

export type ImageStoreOptions = {
  graph: string;
  log: Log;
  registry: RegistryOptions;
  layers: Omit<LayerMakerOptions, "log">;
  storage: StorageOptions;
  verification?: Verification | undefined;
  /** As for pin(). */
  pinned?: string[];
};

type PullOptions = {
  auth?: RegistryAuth;
  /** Recorded with the image; absent: the default handler. */
  runtimeHandler?: string;
} & RegisterOptions;

type LoadOptions = {
  name?: string;
  leavesTagsOf?: (id: string) => boolean;
} & RegisterOptions;

export async function openImageStore(options: ImageStoreOptions): Promise<ImageStore> {
  await mkdir(options.graph, { recursive: true, mode: 0o700 });
  // The mount table has real paths, and mounts are found by path.
  const { graph, log } = options;
  const realGraph = realpathSync(graph);
  const folder = join(realGraph, "layers");
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const records = await ImageRecords.open(join(realGraph, "images"), log);
  const storage = await openStorage(folder, options.storage, log);
  const mounts = mountedOverlays(realGraph);
  const mounted = new Set([...mounts.values()].flat());
  const layers = await LayerStore.open(folder, { driver: storage.driver, mounted, log });
  for (const { id, layers: chain, repoTags } of records.list()) {
    if (chain.every((chainId) => layers.has(chainId))) continue;
    log.warn("image removed: one of its layers is missing", { image: repoTags[0] ?? id });
    await records.remove(id);
  }
  const parts = { graph, realGraph, records, layers, storage, mounts };
  const store = new ImageStore(options, parts);
  store.start();
  return store;
}

type StoreParts = Omit<RootfsMountsParts, "startHelpers"> & { records: ImageRecords };

export class ImageStore implements AsyncDisposable {
  readonly #options: ImageStoreOptions;
  readonly #records: ImageRecords;
  readonly #layers: LayerStore;
  readonly storage: Storage;
  readonly #maker: LayerMaker;
  readonly #pulls = new CountedFlight<ImageRecord, ImageProgress>("pull");
  /** Tests whether an image is excluded from the kubelet's garbage collection. */
  pinned: (image: ImageRecord) => boolean;
  readonly sync: LayerSync;
  readonly #mounts: RootfsMounts;
  readonly #gc: LayerGc;
  readonly #registrar: Registrar;
  readonly #closing = new AbortController();
  /** Keeps layers whose image may come back. */
  #spared: AsyncDisposable | undefined;

  constructor(options: ImageStoreOptions, parts: StoreParts) {
    this.#options = options;
    this.#records = parts.records;
    this.#layers = parts.layers;
    this.storage = parts.storage;
    this.#maker = new LayerMaker(parts.layers, { ...options.layers, log: options.log });
    const startHelpers = () => this.#startHelpers();
    this.sync = new LayerSync(parts.layers, startHelpers, options.log);
    this.#mounts = new RootfsMounts({ ...parts, startHelpers });
    this.#gc = new LayerGc({ ...parts, mounts: this.#mounts });
    const keepsOrigins = options.layers.keepsBlobs;
    const own = { maker: this.#maker, gc: this.#gc, keepsOrigins, startHelpers };
    this.#registrar = new Registrar({ ...parts, ...own });
    this.pinned = pinnedBy(options.pinned ?? []);
  }

  /** Replaces the patterns of images excluded from the kubelet's garbage collection (pinned.ts). */
  pin(patterns: readonly string[]): void {
    this.pinned = pinnedBy(patterns);
  }

  /** Begins to clean up after the previous daemon. */
  start(): void {
    // Keeps all layers until an image is removed to free space: a new pull or load of an image whose record is lost
    // then has to write only the record.
    if (this.#records.unreadable > 0) this.#spared = this.#gc.hold(this.#layers.ids());
    this.#collectLater();
    this.sync.begin();
  }

  /** Collects in the background: nobody waits for the space, and to free it may take the removal of a million files. */
  #collectLater(): void {
    this.#gc.collect().catch(logFailure(this.#options.log, "removing unused layers failed"));
  }

  list(): ImageRecord[] {
    return this.#records.list();
  }

  /**
   * Finds an image by name, tag, digest, name@digest, id, or a prefix of its id.
   * @throws CriError INVALID_ARGUMENT for an ambiguous prefix.
   */
  find(ref: string): ImageRecord | undefined {
    return this.#records.find(ref);
  }

  /** Sums all layers, counting equal content once; inodes: undefined if unknown for some layer. */
  usage(): { bytes: bigint; inodes: bigint | undefined } {
    return this.#layers.usageOf(this.#layers.ids());
  }

  /** Returns an image's layers, lowest first, and its whole config as text, "" if it is not kept. */
  async detailsOf(image: ImageRecord): Promise<{ layers: LayerInfo[]; config: string }> {
    const config = await this.#records.configOf(image.id);
    const layers = image.layers.flatMap((id) => this.#layers.infoOf(id) ?? []);
    return { layers, config: config?.toString("utf8") ?? "" };
  }

  /** Fetches whatever is missing; concurrent pulls of the same image share one run. */
  async pull(ref: string, options: PullOptions): Promise<ImageRecord> {
    const reference = parseReference(ref);
    const { auth, runtimeHandler } = options;
    // By credentials too: a caller without them must not get an image fetched with them.
    const key = jsonText([reference.name, auth ?? null, runtimeHandler ?? null]);
    return await this.#pulls.join(key, options, (signal, onProgress) =>
      loggedPull(this.#options.log, reference.name, async (heard) => {
        const found = await this.#fetchUnlessWhole(reference, { auth, signal });
        if (!("config" in found)) {
          const renewed = await this.#registrar.renew({ ...found, runtimeHandler }, signal);
          if (renewed !== undefined) return renewed;
        }
        const image = "config" in found ? found : await this.#fetch(reference, { auth, signal });
        const onEach = (progress: ImageProgress) => {
          heard(progress);
          onProgress(progress);
        };
        return await this.#register({ ...image, runtimeHandler }, { signal, onProgress: onEach });
      }),
    );
  }

  /**
   * Fetches an image unless the node has all of it. Does not ask for the digest first if the name was not pulled from
   * this repository before, or if verifiers are configured, which must see every image.
   */
  async #fetchUnlessWhole(
    ref: Reference,
    o: Pick<FetchOptions, "auth" | "signal">,
  ): Promise<NewImage | KnownImage> {
    const { registry, verification } = this.#options;
    const repository = `${ref.domain}/${ref.path}`;
    const known = this.find(ref.name)?.repoDigests ?? [];
    const wasPulled = known.some((name) => name.startsWith(`${repository}@`));
    if (verification !== undefined || !wasPulled) return await this.#fetch(ref, o);
    const isKnown = async (digest: string) =>
      (await this.#registrar.whole(repository, digest)) !== undefined;
    const { fetchNewImage } = await import("./pull.ts");
    return await fetchNewImage(ref, { registry, isKnown, ...o });
  }

  async #fetch(ref: Reference, o: Pick<FetchOptions, "auth" | "signal">): Promise<NewImage> {
    const { registry, verification } = this.#options;
    const { fetchImage } = await import("./pull.ts");
    return await fetchImage(ref, { registry, verification, ...o });
  }

  /** Tries every endpoint that a pull of the image would use; keeps nothing. */
  async *checkRegistry(
    ref: string,
    { auth, signal }: Omit<PullOptions, "onProgress">,
  ): AsyncGenerator<EndpointCheck, void, undefined> {
    const { registry } = this.#options;
    const { checkRegistry } = await import("./registry_check.ts");
    yield* checkRegistry(parseReference(ref), { registry, auth, signal });
  }

  /**
   * Registers the images of an archive or OCI layout folder on this host. leavesTagsOf: tests whether the image with
   * this id keeps a tag that it has now; otherwise the loaded image takes the tag.
   */
  async load(path: string, o: LoadOptions): Promise<ImageRecord[]> {
    // Before anything is unpacked.
    if (o.name !== undefined) parseReference(o.name);
    const scratch = await this.#layers.makeScratch();
    try {
      const found = await this.#readArchive(path, scratch, o.signal);
      const loaded: ImageRecord[] = [];
      const { imagesOfArchive } = await import("./load.ts");
      this.#warnOfNames(
        found.flatMap(({ invalidNames }) => invalidNames),
        path,
      );
      for (const image of imagesOfArchive(found, path, o.name)) {
        const isFree = (tag: string) => {
          const holder = this.find(tag)?.id ?? image.id;
          return holder === image.id || !o.leavesTagsOf?.(holder);
        };
        const repoTags = image.repoTags.filter(isFree);
        const record = await this.#register({ ...image, repoTags }, o);
        const known = record.repoTags[0] ?? "without a name";
        this.#options.log.info("image loaded", { image: known, id: record.id, path });
        loaded.push(record);
      }
      return loaded;
    } finally {
      await removeTree(scratch);
    }
  }

  #warnOfNames(invalid: readonly string[], path: string): void {
    if (invalid.length === 0) return;
    const names = clip(invalid.map((name) => quoted(name)).join(", "), 500);
    const message = "loading an archive's images without its names that no image can have";
    this.#options.log.warn(message, { path, names });
  }

  async #readArchive(path: string, scratch: string, signal: AbortSignal) {
    await using helpers = this.#startHelpers();
    const { ratioMax } = this.#options.layers.limits;
    const inflate = (packed: string, target: string) =>
      helpers.run({ kind: "inflate", path: packed, target, ratioMax }, { signal });
    const { readArchive } = await import("./archive.ts");
    return await readArchive(path, { scratch, inflate, signal });
  }

  /**
   * Writes images into an archive on this host (save.ts), each under the tag given, else under all its tags.
   * @throws CriError NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION.
   */
  async save(refs: string[], o: { path: string; force: boolean } & RegisterOptions): Promise<void> {
    const found = refs.map((ref) => ({ ref, record: this.#get(ref) }));
    await using _ = this.#gc.hold(found.flatMap(({ record }) => record.layers));
    const { savedImages, writeArchive } = await import("./save.ts");
    const images = await savedImages(found, { records: this.#records, layers: this.#layers });
    await using helpers = this.#startHelpers();
    const { onProgress = () => {}, ...rest } = o;
    await writeArchive(images, { ...rest, helpers, onProgress });
    this.#options.log.info("images saved", { images: refs.join(" "), path: o.path });
  }

  /** @throws CriError NOT_FOUND. */
  #get(ref: string): ImageRecord {
    const record = this.find(ref);
    if (record !== undefined) return record;
    throw new CriError("NOT_FOUND", `there is no image ${ref} on this node: pull it first`);
  }

  /** Serves the images as a registry mirror. @throws CriError FAILED_PRECONDITION. */
  async serve(options: MirrorOptions): Promise<ImageServer> {
    const { serveImages } = await import("./mirror_server.ts");
    return await serveImages({ records: this.#records, layers: this.#layers }, options);
  }

  /** Returns how many bytes the removal of these images frees: those of layers that nothing else uses. */
  freedBy(ids: ReadonlySet<string>): bigint {
    const [removed, kept] = [new Set<string>(), new Set<string>()];
    for (const { id, layers } of this.list()) {
      for (const layer of layers) (ids.has(id) ? removed : kept).add(layer);
    }
    const mounted = this.#mounts.used();
    for (const id of removed) if (mounted.has(this.#layers.nameOf(id))) kept.add(id);
    return this.#layers.usageOf([...removed, ...kept]).bytes - this.#layers.usageOf(kept).bytes;
  }

  /** Removes the image with all its names; does nothing if there is none. */
  async remove(ref: string): Promise<void> {
    const image = this.find(ref);
    if (image === undefined) return;
    await this.#registrar.remove(image.id, this.#closing.signal);
    const spared = this.#spared;
    this.#spared = undefined; // before the await: another removal must not release it, too
    await spared?.[Symbol.asyncDispose]();
    this.#options.log.info("image removed", { image: image.repoTags[0], id: image.id });
  }

  /**
   * Compares the layers of an image, or of all ("" as ref), with the manifest written when they were
   * unpacked.
   * @throws CriError NOT_FOUND.
   */
  async *verify(ref: string, options: CheckOptions): AsyncGenerator<LayerCheck> {
    const images = ref === "" ? this.list() : [this.#get(ref)];
    const chains = images.flatMap(({ layers }) => layers);
    await using stack = new AsyncDisposableStack();
    const helpers = stack.use(this.#startHelpers());
    stack.defer(() => this.sync.begin());
    stack.use(this.#gc.hold(chains));
    const fetch = (reference: string, signal: AbortSignal) =>
      this.#fetch(parseReference(reference), { auth: undefined, signal });
    const mounts = (chainId: string) => this.#mounts.countOf(chainId);
    const parts = { layers: this.#layers, maker: this.#maker, helpers, fetch, mounts };
    yield* checkLayers(parts, images, options);
  }

  /** Returns the path of the mounted root; dir is the container's folder. */
  async mountRootfs(
    image: ImageRecord,
    { signal, ...parts }: Omit<RootfsMountOptions, "signal"> & { signal?: AbortSignal },
  ): Promise<string> {
    const ends = [this.#closing.signal, ...(signal === undefined ? [] : [signal])];
    try {
      return await this.#mounts.mount(image, { ...parts, signal: AbortSignal.any(ends) });
    } catch (error) {
      await this.unmountRootfs(parts.dir);
      throw error;
    }
  }

  /** Fills another folder of a container, which shares the limit of its writable layer; dir: as for mountRootfs. */
  fillLimited(dir: string, folder: string, fill: () => Promise<void>): Promise<void> {
    return fillLimited(dir, folder, { fill, quota: this.storage.quota });
  }

  /** Undoes mountRootfs; does nothing if nothing is mounted. */
  async unmountRootfs(dir: string): Promise<void> {
    if (await this.#mounts.unmount(dir)) this.#collectLater();
  }

  #startHelpers(): UnpackPool {
    const { driver } = this.storage;
    return new UnpackPool(driver === "native" ? "native" : "overlay");
  }

  async #register(image: NewImage, options: RegisterOptions): Promise<ImageRecord> {
    const record = await this.#registrar.register(image, options);
    this.sync.begin();
    return record;
  }

  /** Cancels running pulls; mounts stay. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#layers.removals.end(); // cancelled pulls would wait for the removal of what they have made
    this.#closing.abort(new CriError("CANCELLED", "the daemon stops"));
    await this.#pulls.end(new CriError("CANCELLED", "the daemon stops"));
    await this.sync.end();
  }
}
