// How a layer comes to be: fetched and unpacked by a helper, or linked from one with the same content.
import { mkdir, rm } from "node:fs/promises";
import { codeOf, CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { UnpackHelpers } from "./helpers.ts";
import type { LayerLimits, UnpackedLayer } from "./layer.ts";
import { blobIn, type LayerStore, listingIn, recipeIn, treeIn } from "./layers.ts";
import { decodingOf, type LayerDescriptor, type ProcessorOptions } from "./processors.ts";
import type { LayerState } from "./layer_progress.ts";
import { assertRoom } from "./disk_space.ts";
import { withoutMirrors } from "../registry/distribution.ts";
import { KeyedLock } from "../base/keyed_lock.ts";
import { Semaphore } from "../base/semaphore.ts";
import type { LayerSource } from "./unpack.ts";

/** A layer that must be there, and where to get it. */
export type LayerWant = LayerDescriptor & {
  chainId: string;
  diffId: string;
  source: LayerSource;
};

export type EnsureOptions = {
  helpers: UnpackHelpers;
  signal: AbortSignal;
  /** index counts the wants; bytes have arrived of that layer's blob. */
  onLayer: (index: number, state: LayerState, bytes: number) => void;
};

export type LayerMakerOptions = {
  limits: LayerLimits;
  /** At once, for one image. */
  downloadsMax: number;
  /** The blobs stay beside the trees. */
  keepsBlobs: boolean;
  decoding: ProcessorOptions;
  log: Log;
};

type OneOptions = EnsureOptions & { downloads: Semaphore; below: Promise<void> };

/** What a layer's own blob was; a layer that was linked has none. */
type Made = Pick<UnpackedLayer, "sizeBytes" | "inodes" | "implicit"> & {
  digest: string | undefined;
};

export class LayerMaker {
  readonly #store: LayerStore;
  readonly #options: LayerMakerOptions;
  readonly #byChain = new KeyedLock();
  /** Whoever holds one of these waits for nobody else's work. */
  readonly #byContent = new KeyedLock();
  /** Diff id → scratch folder of a layer that is made and waits for those below it. */
  readonly #pending = new Map<string, string>();

  constructor(store: LayerStore, options: LayerMakerOptions) {
    this.#store = store;
    this.#options = options;
  }

  /**
   * Makes all the layers be there, lowest first in wants; on failure none of its remains stay.
   * @throws CriError RESOURCE_EXHAUSTED when the file system surely has no room for them,
   * FAILED_PRECONDITION for one that nothing here can decrypt; before anything is fetched.
   */
  async ensure(wants: LayerWant[], options: EnsureOptions): Promise<void> {
    const missing = wants.filter(({ chainId }) => !this.#store.has(chainId));
    for (const want of missing) decodingOf(want, this.#options.decoding);
    await this.#assertRoom(missing);
    const failed = new AbortController();
    const signal = AbortSignal.any([options.signal, failed.signal]);
    const downloads = new Semaphore(this.#options.downloadsMax);
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

  /** A layer takes at least what its blob takes: nobody packs to make larger. */
  async #assertRoom(wants: LayerWant[]): Promise<void> {
    const needed = wants.reduce((sum, { size }) => sum + BigInt(size), 0n);
    await assertRoom(this.#store.root, needed, "the image's missing layers take at least");
  }

  /** Two pulls that need the same layer: the second waits for the first, or takes over. */
  async #ensureOne(wants: LayerWant[], index: number, o: OneOptions): Promise<void> {
    const { chainId, size } = wants[index]!;
    const wasThere = await this.#byChain.run(chainId, o.signal, async () => {
      if (this.#store.has(chainId)) return true;
      await this.#make(wants, index, o);
      return false;
    });
    o.onLayer(index, wasThere ? "present" : "done", size);
  }

  async #make(wants: LayerWant[], index: number, o: OneOptions): Promise<void> {
    const want = wants[index]!;
    const { diffId } = want;
    const scratch = await this.#store.makeScratch();
    try {
      const made = await this.#byContent.run(diffId, o.signal, async () => {
        const result =
          (await this.#linked(want, scratch, o)) ??
          (await this.#unpacked(want, scratch, { ...o, index }));
        if (!this.#pending.has(diffId)) this.#pending.set(diffId, scratch);
        return result;
      });
      await o.below;
      await this.#byContent.run(diffId, o.signal, async () => {
        this.#settle(diffId, scratch);
        await this.#inherit(wants, index, { ...o, scratch, implicit: made.implicit });
        await this.#store.commit({ ...want, ...made }, scratch);
      });
    } finally {
      // With the turn: nobody links from what is going.
      await this.#byContent.run(diffId, undefined, async () => {
        this.#settle(diffId, scratch);
        await rm(scratch, { recursive: true, force: true });
      });
    }
  }

  #settle(diffId: string, scratch: string): void {
    if (this.#pending.get(diffId) === scratch) this.#pending.delete(diffId);
  }

  /**
   * Makes the layer at an index anew, whatever is there, and puts it into its place.
   * before: called, without a wait after it, before that happens.
   */
  async remake(
    wants: LayerWant[],
    index: number,
    options: EnsureOptions & { before: () => void },
  ): Promise<void> {
    const want = wants[index]!;
    await this.#assertRoom([want]);
    await this.#byChain.run(want.chainId, options.signal, async () => {
      const scratch = await this.#store.makeScratch();
      try {
        const o = { ...options, index, downloads: new Semaphore(1), below: Promise.resolve() };
        const made = await this.#unpacked(want, scratch, o);
        await this.#inherit(wants, index, { ...o, scratch, implicit: made.implicit });
        options.before();
        await this.#store.replace({ ...want, ...made }, scratch);
      } finally {
        await rm(scratch, { recursive: true, force: true });
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
    const folder = treeIn(o.scratch);
    const job = { kind: "inherit", folder, lower: lower.toReversed(), paths: o.implicit } as const;
    await o.helpers.run(job, { signal: o.signal });
  }

  /** Links a layer with the same content, if one is there: undefined where none is, or it cannot be. */
  async #linked(want: LayerWant, scratch: string, o: OneOptions): Promise<Made | undefined> {
    const pending = this.#pending.get(want.diffId);
    const from =
      pending === undefined
        ? this.#store.withContent(want.diffId)
        : { tree: treeIn(pending), listing: listingIn(pending), recipe: recipeIn(pending) };
    if (from === undefined) return undefined;
    try {
      const cloned = await o.helpers.run(
        {
          kind: "clone",
          from: from.tree,
          fromListing: from.listing,
          fromRecipe: from.recipe,
          folder: treeIn(scratch),
          listing: listingIn(scratch),
          recipe: recipeIn(scratch),
        },
        { signal: o.signal },
      );
      return { ...cloned, digest: undefined };
    } catch (error) {
      // It was removed meanwhile, or a file has as many names as it may have.
      this.#options.log.debug("a layer is fetched: its like cannot be linked", {
        layer: want.digest,
        error: messageOf(error),
      });
      await empty(scratch);
      return undefined;
    }
  }

  async #unpacked(
    want: LayerWant,
    scratch: string,
    o: OneOptions & { index: number },
  ): Promise<Made> {
    return await o.downloads.run(o.signal, () => this.#fetch(want, scratch, o));
  }

  /** What a mirror damaged is fetched once more, from the registry itself. */
  async #fetch(want: LayerWant, scratch: string, o: OneOptions & { index: number }): Promise<Made> {
    const attempt = async (source: LayerSource) => {
      const folder = treeIn(scratch);
      await mkdir(folder, { mode: 0o755 });
      const { digest, size, diffId } = want;
      const decoding = decodingOf(want, this.#options.decoding);
      const { limits, keepsBlobs } = this.#options;
      const [listing, recipe] = [listingIn(scratch), recipeIn(scratch)];
      o.onLayer(o.index, "moving", 0);
      const blob = keepsBlobs ? blobIn(scratch) : undefined;
      const job = {
        kind: "unpack",
        folder,
        listing,
        recipe,
        blob,
        source,
        digest,
        size,
        diffId,
        decoding,
        limits,
      } as const;
      const onBytes = (bytes: number) => o.onLayer(o.index, "moving", bytes);
      return await o.helpers.run(job, { signal: o.signal, onBytes });
    };
    try {
      return await attempt(want.source);
    } catch (error) {
      const { source } = want;
      const session = source.kind === "registry" ? withoutMirrors(source.session) : undefined;
      if (session === undefined || codeOf(error) !== "DATA_LOSS") throw error;
      this.#options.log.warn("a mirror sent a damaged layer", {
        layer: want.digest,
        error: messageOf(error),
      });
      await empty(scratch);
      return await attempt({ kind: "registry", session });
    }
  }
}

/** For another attempt. */
async function empty(scratch: string): Promise<void> {
  for (const path of [treeIn, listingIn, recipeIn, blobIn].map((at) => at(scratch))) {
    await rm(path, { recursive: true, force: true });
  }
}

/** A full disk, as callers are told of it; other errors as they are. */
export function asFull(error: unknown): unknown {
  if (!["ENOSPC", "EDQUOT"].includes(errnoOf(error) ?? "")) return error;
  return new CriError("RESOURCE_EXHAUSTED", `no space left: ${messageOf(error)}`, { cause: error });
}
