// Provides an image's layers: an unpack helper downloads and unpacks each missing layer, or clones one with
// the same content. Runs in the daemon.
import { mkdir } from "node:fs/promises";
import { activity } from "../base/activity.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { clip } from "../base/text.ts";
import type { UnpackPool } from "./unpack_pool.ts";
import type { ClonedLayer } from "./job_clone.ts";
import type { LayerLimits, LayerSource } from "./job_unpack.ts";
import { accessAfter, firstAccess, pullerOf, reuseOf, type LayerAccess } from "./layer_access.ts";
import { scratchPaths, type LayerStore } from "./layer_store.ts";
import { chooseDecoding, type LayerDescriptor, type ProcessorOptions } from "./processor_choice.ts";
import type { LayerState } from "./layer_progress.ts";
import { LayerTimes } from "./layer_times.ts";
import { assertDiskSpace } from "./disk_space.ts";
import { KeyedLock } from "../base/keyed_lock.ts";
import { Semaphore } from "../base/semaphore.ts";
import { removeTree } from "../sys/remove_tree.ts";

const shownBytesMax = 200;

export type LayerWant = LayerDescriptor & {
  chainId: string;
  diffId: string;
  source: LayerSource;
};

type EnsureOptions = {
  helpers: UnpackPool;
  signal: AbortSignal;
  /** index: of the layer in the wants; bytes: downloaded of its blob. */
  onLayer: (index: number, state: LayerState, bytes: number) => void;
};

export type LayerMakerOptions = {
  limits: LayerLimits;
  downloadsMax: number;
  /** Keeps the blobs next to the trees. */
  keepsBlobs: boolean;
  decoding: ProcessorOptions;
  log: Log;
};

type OneOptions = EnsureOptions & { downloads: Semaphore; below: Promise<void> };

/** A layer in its scratch folder; digest: of its blob, which a cloned layer does not have. */
type MadeLayer = ClonedLayer & { digest: string | undefined };
/** restricted: who may reuse it. */
type OwnedLayer = MadeLayer & { restricted: LayerAccess };

export class LayerMaker {
  readonly #store: LayerStore;
  readonly #options: LayerMakerOptions;
  readonly #byChain = new KeyedLock("layer");
  /** Holders of these locks wait for no other layer, so they cannot deadlock. */
  readonly #byContent = new KeyedLock("content");
  /** Diff ID → scratch folder of a finished layer that waits for the layers below it, and who may reuse it. */
  readonly #pending = new Map<string, { scratch: string; restricted: LayerAccess }>();

  constructor(store: LayerStore, options: LayerMakerOptions) {
    this.#store = store;
    this.#options = options;
  }

  /**
   * Provides all layers; wants: lowest first. On failure no partial layer stays.
   * @throws CriError, before any download: RESOURCE_EXHAUSTED when the file system is too full,
   * FAILED_PRECONDITION for a layer that this node cannot decrypt.
   */
  async ensure(wants: LayerWant[], options: EnsureOptions): Promise<void> {
    const missing = wants.filter(({ chainId }) => !this.#store.has(chainId));
    for (const want of missing) chooseDecoding(want, this.#options.decoding);
    await this.#assertDiskSpace(missing);
    const failed = new AbortController();
    const signal = AbortSignal.any([options.signal, failed.signal]);
    const downloads = new Semaphore(
      this.#options.downloadsMax,
      "a download (max-concurrent-downloads)",
    );
    let below = Promise.resolve();
    const tasks: Promise<void>[] = [];
    for (const index of wants.keys()) {
      below = this.#ensureOne(wants, index, { ...options, signal, below, downloads });
      below.catch((error: unknown) => failed.abort(error));
      tasks.push(below);
    }
    await Promise.allSettled(tasks);
    if (failed.signal.aborted) throw failed.signal.reason as Error;
  }

  /** The sum of the blobs' sizes is a lower bound of the trees' size. */
  async #assertDiskSpace(wants: LayerWant[]): Promise<void> {
    const needed = wants.reduce((sum, { size }) => sum + BigInt(size ?? 0), 0n);
    await assertDiskSpace(this.#store.root, needed, "the image's missing layers take at least");
  }

  /** Makes one layer. Of two pulls that need the same layer, the second waits, and makes it if the first fails. */
  async #ensureOne(wants: LayerWant[], index: number, o: OneOptions): Promise<void> {
    const { chainId, size } = wants[index]!;
    const wasThere = await this.#byChain.run(chainId, o.signal, async () => {
      if (this.#store.has(chainId)) {
        await this.#proveAccess(wants[index]!, { ...o, index });
        return true;
      }
      await this.#make(wants, index, o);
      return false;
    });
    o.onLayer(index, wasThere ? "present" : "done", size ?? 0);
  }

  async #make(wants: LayerWant[], index: number, o: OneOptions): Promise<void> {
    const want = wants[index]!;
    const { diffId } = want;
    const scratch = await this.#store.makeScratch();
    try {
      const made = await this.#byContent.run(diffId, o.signal, async () => {
        const result =
          (await this.#cloneLayer(want, scratch, o)) ??
          (await this.#fetchLayer(want, scratch, { ...o, index }));
        const { restricted } = result;
        if (!this.#pending.has(diffId)) this.#pending.set(diffId, { scratch, restricted });
        return result;
      });
      await o.below;
      await this.#byContent.run(diffId, o.signal, async () => {
        this.#clearPending(diffId, scratch);
        await this.#inherit(wants, index, { ...o, scratch, implicit: made.implicit });
        await this.#store.commit({ ...want, ...made }, scratch);
      });
    } finally {
      // Under the lock: no other layer may be cloned from a folder that is being removed.
      await this.#byContent.run(diffId, undefined, async () => {
        this.#clearPending(diffId, scratch);
        await removeTree(scratch);
      });
    }
  }

  #clearPending(diffId: string, scratch: string): void {
    if (this.#pending.get(diffId)?.scratch === scratch) this.#pending.delete(diffId);
  }

  /**
   * Makes the layer at an index again and replaces the existing one.
   * beforeReplace: called right before the replacement, without an await in between.
   */
  async remake(
    wants: LayerWant[],
    index: number,
    options: EnsureOptions & { beforeReplace: () => void },
  ): Promise<void> {
    const want = wants[index]!;
    await this.#assertDiskSpace([want]);
    await this.#byChain.run(want.chainId, options.signal, async () => {
      const scratch = await this.#store.makeScratch();
      try {
        const o = {
          ...options,
          index,
          downloads: new Semaphore(1, "a download"),
          below: Promise.resolve(),
        };
        const made = await this.#unpackLayer(want, scratch, o);
        await this.#inherit(wants, index, { ...o, scratch, implicit: made.implicit });
        options.beforeReplace();
        await this.#store.replace({ ...want, ...made }, scratch);
      } finally {
        await removeTree(scratch);
      }
    });
  }

  async #inherit(
    wants: LayerWant[],
    index: number,
    o: EnsureOptions & { scratch: string; implicit: string[] },
  ): Promise<void> {
    if (o.implicit.length === 0 || index === 0) return;
    const lower = wants.slice(0, index).map(({ chainId }) => this.#store.tree(chainId));
    const { tree: folder } = scratchPaths(o.scratch);
    const job = { kind: "inherit", folder, lower: lower.toReversed(), paths: o.implicit } as const;
    await o.helpers.run(job, { signal: o.signal });
  }

  /**
   * Tests whether the pull may reuse this content (layer_access.ts). False: it has to download it.
   * @throws CriError when the registry has to be asked, and does not answer.
   */
  async #mayReuse(want: LayerWant, access: LayerAccess, signal: AbortSignal): Promise<boolean> {
    const { source, digest, diffId } = want;
    const reuse = reuseOf(access, pullerOf(source), digest);
    if (reuse !== "ask" || source.kind !== "registry") return reuse === "allowed";
    const { offersBlob } = await import("../registry/distribution.ts");
    const { registryItself } = await import("../registry/failover.ts");
    try {
      return await offersBlob(registryItself(source.session), { digest }, signal);
    } catch (error) {
      throw unproven(error, diffId);
    }
  }

  /** Proves that the pull may use a layer that is here, by the registry's word or by a download. */
  async #proveAccess(want: LayerWant, o: OneOptions & { index: number }): Promise<void> {
    const { diffId, digest, source } = want;
    const puller = pullerOf(source);
    const mayReuse = await this.#mayReuse(want, this.#store.accessTo(diffId), o.signal);
    if (!mayReuse) {
      const scratch = await this.#store.makeScratch();
      try {
        await this.#fetchLayer(want, scratch, o);
      } finally {
        await removeTree(scratch);
      }
    }
    const verified = mayReuse ? undefined : digest;
    await this.#store.changeAccess(diffId, (old) => accessAfter(old, puller, verified));
  }

  /** Downloads a layer; one that is here with restricted access from the registry itself, which knows who may have it. */
  async #fetchLayer(
    want: LayerWant,
    scratch: string,
    o: OneOptions & { index: number },
  ): Promise<OwnedLayer> {
    const { diffId, digest, source } = want;
    const puller = pullerOf(source);
    const access = this.#pending.get(diffId)?.restricted ?? this.#store.accessTo(diffId);
    const restricted = firstAccess(puller, digest);
    if (source.kind !== "registry" || reuseOf(access, puller, digest) === "allowed")
      return { ...(await this.#unpackLayer(want, scratch, o)), restricted };
    const { registryItself } = await import("../registry/failover.ts");
    const own = { ...want, source: { ...source, session: registryItself(source.session) } };
    try {
      return { ...(await this.#unpackLayer(own, scratch, o)), restricted };
    } catch (error) {
      throw unproven(error, diffId);
    }
  }

  /** Clones a layer with the same content; undefined if this pull may use none, or linking failed. */
  async #cloneLayer(
    want: LayerWant,
    scratch: string,
    o: OneOptions,
  ): Promise<OwnedLayer | undefined> {
    const pending = this.#pending.get(want.diffId);
    const from =
      pending === undefined
        ? this.#store.findByContent(want.diffId)
        : scratchPaths(pending.scratch);
    if (from === undefined) return undefined;
    const access = pending === undefined ? this.#store.accessTo(want.diffId) : pending.restricted;
    if (!(await this.#mayReuse(want, access, o.signal))) return undefined;
    const restricted = accessAfter(access, pullerOf(want.source));
    try {
      const { tree: folder, manifest: listing, tarSplit: recipe } = scratchPaths(scratch);
      const source = { from: from.tree, fromListing: from.manifest, fromRecipe: from.tarSplit };
      const job = { kind: "clone", ...source, folder, listing, recipe } as const;
      const cloned = await o.helpers.run(job, { signal: o.signal });
      return { ...cloned, digest: undefined, restricted };
    } catch (error) {
      // The other layer was removed meanwhile, or one of its files has the maximum number of hard links.
      this.#options.log.debug("cannot clone a layer with the same content, fetching it", {
        layer: want.digest,
        error: messageOf(error),
      });
      await emptyScratch(scratch);
      return undefined;
    }
  }

  /** Unpacks a layer; one that a mirror sent damaged is fetched again from the registry itself. */
  async #unpackLayer(
    want: LayerWant,
    scratch: string,
    o: OneOptions & { index: number },
  ): Promise<MadeLayer> {
    return await o.downloads.run(o.signal, async () => {
      const { source } = want;
      try {
        return await this.#unpackFrom(source, want, { ...o, scratch });
      } catch (error) {
        if (source.kind !== "registry" || codeOf(error) !== "DATA_LOSS")
          throw explained(error, want);
        const { withoutMirrors } = await import("../registry/failover.ts");
        const session = withoutMirrors(source.session);
        if (session === undefined) throw error;
        this.#options.log.warn("a mirror sent a damaged layer, fetching it from the registry", {
          layer: want.digest,
          error: messageOf(error),
        });
        // It is not known which mirror sent it: later layers of the pull ask all mirrors last.
        for (const one of source.session.upstreams) if (!one.isOrigin) one.isFailing = true;
        await emptyScratch(scratch);
        return await this.#unpackFrom({ kind: "registry", session }, want, { ...o, scratch });
      }
    });
  }

  async #unpackFrom(
    source: LayerSource,
    want: LayerWant,
    o: OneOptions & { index: number; scratch: string },
  ): Promise<MadeLayer> {
    const { tree: folder, manifest: listing, tarSplit: recipe, ...paths } = scratchPaths(o.scratch);
    await mkdir(folder, { mode: 0o755 });
    const { digest, size, diffId } = want;
    const { limits, keepsBlobs } = this.#options;
    const blob = keepsBlobs ? paths.blob : undefined;
    const decoding = chooseDecoding(want, this.#options.decoding);
    o.onLayer(o.index, "moving", 0);
    const input = { source, digest, size, diffId, decoding, limits };
    const job = { kind: "unpack", ...input, folder, listing, recipe, blob } as const;
    const times = new LayerTimes(size ?? 0);
    const onBytes = (bytes: number) => {
      times.received(bytes);
      o.onLayer(o.index, "moving", bytes);
    };
    const run = async () => {
      const answer = await o.helpers.run(job, { signal: o.signal, onBytes });
      const { failing, trusted, ...made } = answer;
      if (trusted.length > 0) {
        const message =
          "trusted.* attributes of a layer are left out: they would control overlayfs";
        this.#options.log.warn(message, { layer: digest, attributes: trusted.join(" ") });
      }
      if (source.kind === "registry") {
        times.report();
        for (const upstream of source.session.upstreams) {
          if (failing.includes(upstream.url)) upstream.isFailing = true;
        }
      }
      return made;
    };
    return await activity("pull", { phase: "layer" }, run, () => ({ layer: digest }));
  }
}

function unproven(error: unknown, diffId: string): unknown {
  const reason = `this node has layer ${diffId} of another, private image, which this pull gets only if its registry itself gives it`;
  return new CriError(codeOf(error), `${messageOf(error)} (${reason})`, { cause: error });
}

/** Names the media type of a layer that turned out to be no tar, and explains a missing layer. */
function explained(error: unknown, want: LayerWant): unknown {
  const { mediaType } = want;
  if (!messageOf(error).includes("not a valid tar stream") || /\btar\b|^$/.test(mediaType)) {
    return missing(error, want);
  }
  const message = `${messageOf(error)}; the image says that it is ${clip(mediaType, shownBytesMax)}`;
  return new CriError(codeOf(error), message, { cause: error });
}

/**
 * Explains why a registry may lack a layer of a foreign media type: such a layer need not be in the registry, and its
 * urls are not followed, because an image must not choose which hosts a node asks.
 */
function missing(error: unknown, { mediaType, urls }: LayerWant): unknown {
  const isElsewhere = /\.foreign\.|\.nondistributable\./.test(mediaType);
  if (!isElsewhere || codeOf(error) !== "NOT_FOUND") return error;
  const where = urls?.length ? ` but at ${clip(urls.join(", "), shownBytesMax)}` : "";
  const message = `${messageOf(error)}; the image says that this layer is not in registries${where} (${clip(mediaType, shownBytesMax)}): push it with its non-distributable layers, or build it from another base image`;
  return new CriError("NOT_FOUND", message, { cause: error });
}

async function emptyScratch(scratch: string): Promise<void> {
  for (const path of Object.values(scratchPaths(scratch))) {
    await removeTree(path);
  }
}
