// The node's images: pulled from registries or loaded from files, mounted for containers, removed.
import { mkdir, rm } from "node:fs/promises";
import { realpathSync } from "node:fs";
import { join, resolve } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/int64.ts";
import type { Log } from "../base/log.ts";
import { step } from "../base/steps.ts";
import { readArchive, type ArchiveImage } from "./archive.ts";
import type { RegistryAuth } from "./auth.ts";
import { UnpackHelpers } from "./helpers.ts";
import type { RegistryOptions } from "./hosts.ts";
import { JoinedPulls, type PullProgress } from "./joined.ts";
import { asFull, LayerMaker, type LayerMakerOptions, type LayerWant } from "./layer_maker.ts";
import { checkLayers, type CheckOptions, type LayerCheck } from "./layer_checks.ts";
import { LayerStore, shortId } from "./layers.ts";
import { chainIds, parseConfig } from "./manifest.ts";
import { fetchImage, type NewImage } from "./pull.ts";
import { ImageRecords, type ImageRecord } from "./records.ts";
import { parseReference } from "./reference.ts";
import { mountedOverlays, mountOverlay, unmountOverlay, type RootfsParts } from "./rootfs.ts";
import { Turns } from "./turns.ts";

export type { RegistryAuth } from "./auth.ts";
export type { LayerCheck } from "./layer_checks.ts";
export type { RegistryOptions } from "./hosts.ts";
export type { PullProgress } from "./joined.ts";
export type { ImageConfig } from "./manifest.ts";
export type { ImageRecord } from "./records.ts";
export type { RootfsOwner } from "./rootfs.ts";

export type ImageStoreOptions = {
  graph: string;
  log: Log;
  registry: RegistryOptions;
  layers: Omit<LayerMakerOptions, "log">;
  /** The argv that runs our own program, for the unpacking helpers. */
  self: string[];
  /** Names of images that the kubelet must not collect. */
  pinned?: string[];
};

export type PullOptions = {
  auth?: RegistryAuth;
  signal: AbortSignal;
  onProgress?: (progress: PullProgress) => void;
};

export async function openImageStore(options: ImageStoreOptions): Promise<ImageStore> {
  await mkdir(options.graph, { recursive: true, mode: 0o711 });
  // As the kernel names it: mounts are found again by their paths.
  const graph = realpathSync(options.graph);
  await mkdir(join(graph, "layers"), { recursive: true, mode: 0o711 });
  const records = await ImageRecords.open(join(graph, "images"), options.log);
  const layers = await LayerStore.open(join(graph, "layers"), options.log);
  for (const { id, layers: chain, repoTags } of records.list()) {
    if (chain.every((chainId) => layers.has(chainId))) continue;
    options.log.warn("image dropped: a layer of it is missing", { image: repoTags[0] ?? id });
    await records.remove(id);
  }
  const store = new ImageStore(options, { graph, records, layers });
  await store.collectGarbage();
  store.syncSoon();
  return store;
}

type StoreParts = { graph: string; records: ImageRecords; layers: LayerStore };

export class ImageStore implements AsyncDisposable {
  readonly #options: ImageStoreOptions;
  readonly #graph: string;
  readonly #records: ImageRecords;
  readonly #layers: LayerStore;
  readonly #maker: LayerMaker;
  readonly #pulls: JoinedPulls<ImageRecord>;
  /** Container folder → short names of the layers it is mounted from. */
  readonly #mounts: Map<string, string[]>;
  /** Layers of images that are being made, by how many. */
  readonly #wanted = new Map<string, number>();
  /** Records are written one after another. */
  readonly #writing = new Turns(1);
  readonly #closing = new AbortController();
  #syncing: Promise<void> | undefined;

  constructor(options: ImageStoreOptions, parts: StoreParts) {
    this.#options = options;
    this.#graph = parts.graph;
    this.#records = parts.records;
    this.#layers = parts.layers;
    this.#maker = new LayerMaker(parts.layers, { ...options.layers, log: options.log });
    this.#pulls = new JoinedPulls();
    this.#mounts = mountedOverlays(parts.graph);
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

  /** Of all layers together, each counted once. */
  usedBytes(): bigint {
    return this.#layers.ids().reduce((sum, id) => sum + BigInt(this.#layers.sizeOf(id)), 0n);
  }

  pinned(image: ImageRecord): boolean {
    return (this.#options.pinned ?? []).some((ref) => this.find(ref)?.id === image.id);
  }

  /** Fetches what is missing; a second pull of the same name joins the first. */
  async pull(ref: string, options: PullOptions): Promise<ImageRecord> {
    const reference = parseReference(ref);
    // Somebody without the credentials must not get the image of somebody with them.
    const key = JSON.stringify([reference.name, options.auth ?? null]);
    return await this.#pulls.join(key, options, async (signal, onProgress) => {
      const startMs = performance.now();
      const image = await fetchImage(reference, {
        registry: this.#options.registry,
        auth: options.auth,
        signal,
      });
      const record = await this.#publish(image, { signal, onProgress });
      const ms = Math.round(performance.now() - startMs);
      this.#options.log.info("image pulled", { image: reference.name, id: record.id, ms });
      return record;
    });
  }

  /** Registers the images of an archive or OCI layout folder on this host. */
  async load(path: string, o: { name?: string; signal: AbortSignal }): Promise<ImageRecord[]> {
    const name = o.name ? parseReference(o.name).name : undefined;
    const scratch = this.#layers.makeScratch();
    try {
      const found = await readArchive(path, { scratch, signal: o.signal });
      const loaded: ImageRecord[] = [];
      for (const image of found) {
        const record = await this.#publish(newImage(image, path, name), {
          signal: o.signal,
          onProgress: () => {},
        });
        this.#options.log.info("image loaded", { image: record.repoTags[0], id: record.id, path });
        loaded.push(record);
      }
      return loaded;
    } finally {
      await rm(scratch, { recursive: true, force: true });
    }
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
    const found = this.find(ref);
    if (ref !== "" && found === undefined) {
      throw new CriError("NOT_FOUND", `image ${ref} is not on this node`);
    }
    const images = found === undefined ? this.list() : [found];
    const chains = images.flatMap(({ layers }) => layers);
    await using helpers = new UnpackHelpers(this.#options.self);
    this.#want(chains, 1); // none of them goes meanwhile
    try {
      const { layers, maker } = { layers: this.#layers, maker: this.#maker };
      const registry = this.#options.registry;
      const fetch = (reference: string, signal: AbortSignal) =>
        fetchImage(parseReference(reference), { registry, auth: undefined, signal });
      const mounts = (chainId: string) =>
        [...this.#mounts.values()].filter((lower) => lower.includes(shortId(chainId))).length;
      yield* checkLayers({ layers, maker, helpers, fetch, mounts }, images, options);
    } finally {
      this.#want(chains, -1);
      await this.collectGarbage();
      this.syncSoon();
    }
  }

  /** A container's folder as the kernel names it, whether it is there or not. */
  #real(dir: string): string {
    const [path, graph] = [resolve(dir), resolve(this.#options.graph)];
    return path.startsWith(`${graph}/`) ? this.#graph + path.slice(graph.length) : path;
  }

  /** @returns the path of the mounted root; dir is the container's folder. */
  async mountRootfs(
    image: ImageRecord,
    { dir, ...parts }: Omit<RootfsParts, "trees" | "lower">,
  ): Promise<string> {
    const absolute = this.#real(dir);
    const missing = image.layers.find((chainId) => !this.#layers.has(chainId));
    if (missing !== undefined) {
      const message = `the image ${image.id} was removed meanwhile: pull it again`;
      throw new CriError("FAILED_PRECONDITION", message);
    }
    const lower = image.layers.map(shortId);
    this.#mounts.set(absolute, lower); // first: from now on the layers stay
    try {
      await mkdir(absolute, { recursive: true, mode: 0o711 });
      const trees = this.#layers.trees;
      return await mountOverlay({ trees, lower, dir: absolute, ...parts });
    } catch (error) {
      await this.unmountRootfs(absolute);
      throw error;
    }
  }

  /** Unmounts and removes what mountRootfs made; nothing there is no error. */
  async unmountRootfs(dir: string): Promise<void> {
    const absolute = this.#real(dir);
    await unmountOverlay(absolute);
    if (!this.#mounts.delete(absolute)) return;
    await this.collectGarbage();
  }

  async #publish(
    image: NewImage,
    o: { signal: AbortSignal; onProgress: (progress: PullProgress) => void },
  ): Promise<ImageRecord> {
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
      await step("image-layers", () => this.#fetchLayers(wants, o));
      const sizes = chain.map((chainId) => BigInt(this.#layers.sizeOf(chainId)));
      const record: ImageRecord = {
        id: image.id,
        repoTags: image.repoTags,
        repoDigests: image.repoDigests,
        sizeBytes: sizes.reduce((sum, size) => sum + size, BigInt(image.config.length)),
        config,
        layers: chain,
        pulledAtNs: nowNs(),
      };
      const added = await step("image-register", () =>
        this.#writing.run(o.signal, () => this.#records.add(record)),
      );
      this.syncSoon();
      return added;
    } catch (error) {
      throw asFull(error);
    } finally {
      this.#want(chain, -1);
      await this.collectGarbage();
    }
  }

  async #fetchLayers(
    wants: LayerWant[],
    o: { signal: AbortSignal; onProgress: (progress: PullProgress) => void },
  ): Promise<void> {
    const totalBytes = wants.reduce((sum, { size }) => sum + size, 0);
    const done = wants.map(() => 0);
    const onBytes = (index: number, bytes: number) => {
      done[index] = bytes;
      o.onProgress({ doneBytes: done.reduce((sum, part) => sum + part, 0), totalBytes });
    };
    await using helpers = new UnpackHelpers(this.#options.self);
    await this.#maker.ensure(wants, { helpers, signal: o.signal, onBytes });
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
    const mounted = new Set([...this.#mounts.values()].flat());
    await this.#layers.collect(
      (id) => ofImages.has(id) || mounted.has(shortId(id)) || this.#wanted.has(id),
    );
  }

  /** Lets a helper bring new layers to the disk while nobody waits. */
  syncSoon(): void {
    if (this.#syncing !== undefined || this.#layers.unsynced().length === 0) return;
    this.#syncing = this.#sync().finally(() => {
      this.#syncing = undefined;
    });
  }

  async #sync(): Promise<void> {
    try {
      await using helpers = new UnpackHelpers(this.#options.self);
      await this.#layers.sync(helpers, this.#closing.signal);
      await this.collectGarbage(); // what was removed while its mark was taken away
    } catch (error) {
      if (this.#closing.signal.aborted) return;
      this.#options.log.warn("cannot sync new layers", { error: messageOf(error) });
    }
  }

  /** Ends what is under way; mounts stay. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort(new CriError("CANCELLED", "the daemon stops"));
    await this.#pulls.end();
    await this.#syncing;
  }
}

function newImage(image: ArchiveImage, path: string, given: string | undefined): NewImage {
  const repoTags = new Set<string>();
  const repoDigests = new Set<string>();
  const names = image.names.length === 0 && given !== undefined ? [given] : image.names;
  for (const name of names) {
    // An OCI layout may name only the tag; which repository it is of, only the caller knows.
    const isTag = !/[/:]/.test(name) && given !== undefined;
    const reference = parseReference(isTag ? `${repositoryOf(given)}:${name}` : name);
    if (reference.digest === undefined) repoTags.add(reference.name);
    const repository = `${reference.domain}/${reference.path}`;
    if (image.manifestDigest !== "") repoDigests.add(`${repository}@${image.manifestDigest}`);
  }
  return {
    id: image.configDigest,
    config: image.config,
    repoTags: [...repoTags],
    repoDigests: [...repoDigests],
    layers: image.layers.map(({ digest, size, path: file, offset }) => ({
      digest,
      size,
      source: { kind: "file", path: file, offset },
    })),
    what: path,
  };
}

function repositoryOf(name: string): string {
  const { domain, path } = parseReference(name);
  return `${domain}/${path}`;
}
