// Unpacked layers on disk: layers/l/SHORT is a layer's tree, layers/SHORT.json what it is.
// Decision: a layer is synced after it is in use, not before. Until then its record carries the
// boot it was made in; where that boot ended without a sync, the layer is dropped and pulled again.
import { randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, renameSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { writeFileAtomic } from "../sys/file.ts";
import type { UnpackHelpers } from "./helpers.ts";
import { withoutMirrors } from "./registry.ts";
import { KeyedTurns, Turns } from "./turns.ts";
import type { LayerSource } from "./unpack.ts";

const LayerFile = v.object({
  version: v.literal(1),
  chainId: v.string(),
  diffId: v.string(),
  sizeBytes: v.number(),
  /** The boot that made it, as long as it is not known to be on the disk. */
  unsyncedBoot: v.optional(v.string()),
});
type LayerFile = v.InferOutput<typeof LayerFile>;

/** A layer that must be there, and where to get it. */
export type LayerWant = {
  chainId: string;
  diffId: string;
  digest: string;
  size: number;
  source: LayerSource;
};

export type EnsureOptions = {
  helpers: UnpackHelpers;
  signal: AbortSignal;
  /** index counts the wants; bytes that have arrived of that layer. */
  onBytes: (index: number, bytes: number) => void;
};

const downloadsMax = 3;

/** Short names keep 127 lower layers within mount(2)'s page of options. */
export function shortId(chainId: string): string {
  return chainId.slice(chainId.indexOf(":") + 1).slice(0, 12);
}

export class LayerStore {
  readonly #root: string;
  readonly #log: Log;
  readonly #layers = new Map<string, LayerFile>();
  readonly #turns = new KeyedTurns();
  /** The layer whose record is being written anew: not to be collected just now. */
  #marking: string | undefined;
  readonly #bootId = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();

  private constructor(root: string, log: Log) {
    this.#root = root;
    this.#log = log;
  }

  static async open(root: string, log: Log): Promise<LayerStore> {
    const store = new LayerStore(root, log);
    await mkdir(join(root, "l", "empty"), { recursive: true, mode: 0o711 });
    await rm(store.#scratch, { recursive: true, force: true });
    await mkdir(store.#scratch, { mode: 0o700 });
    for (const name of await readdir(root)) {
      if (name.endsWith(".tmp")) await rm(join(root, name), { force: true });
      else if (name.endsWith(".json")) await store.#read(name);
    }
    const known = new Set([...store.#layers.values()].map(({ chainId }) => shortId(chainId)));
    for (const name of await readdir(store.trees)) {
      if (name !== "empty" && !known.has(name)) await store.#discard(join(store.trees, name));
    }
    return store;
  }

  /** The folder that holds the layers' trees by their short names. */
  get trees(): string {
    return join(this.#root, "l");
  }

  get #scratch(): string {
    return join(this.#root, "scratch");
  }

  has(chainId: string): boolean {
    return this.#layers.has(chainId);
  }

  sizeOf(chainId: string): number {
    return this.#layers.get(chainId)?.sizeBytes ?? 0;
  }

  ids(): string[] {
    return [...this.#layers.keys()];
  }

  tree(chainId: string): string {
    return join(this.trees, shortId(chainId));
  }

  /** A folder of its own for somebody's temporary files; gone at the next start at the latest. */
  makeScratch(): string {
    const folder = join(this.#scratch, randomBytes(8).toString("hex"));
    mkdirSync(folder, { mode: 0o700 });
    return folder;
  }

  /** Makes all the layers be there, lowest first in wants; on failure none of its remains stay. */
  async ensure(wants: LayerWant[], options: EnsureOptions): Promise<void> {
    const failed = new AbortController();
    const signal = AbortSignal.any([options.signal, failed.signal]);
    const downloads = new Turns(downloadsMax);
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

  /** Two pulls that need the same layer: the second waits for the first, or takes over. */
  async #ensureOne(wants: LayerWant[], index: number, o: OneOptions): Promise<void> {
    const { chainId, size } = wants[index]!;
    await this.#turns.run(chainId, o.signal, async () => {
      if (!this.has(chainId)) await this.#make(wants, index, o);
    });
    o.onBytes(index, size);
  }

  async #make(wants: LayerWant[], index: number, o: OneOptions): Promise<void> {
    const { helpers, signal } = o;
    await using undo = new AsyncDisposableStack();
    const scratch = this.makeScratch();
    undo.defer(() => rm(scratch, { recursive: true, force: true }));
    const folder = join(scratch, "tree");
    const layer = await o.downloads.run(signal, () =>
      this.#unpack(wants[index]!, folder, { ...o, index }),
    );
    await o.below;
    if (layer.implicit.length > 0 && index > 0) {
      const lower = wants.slice(0, index).map(({ chainId }) => this.tree(chainId));
      const paths = layer.implicit;
      await helpers.run({ kind: "inherit", folder, lower: lower.toReversed(), paths }, { signal });
    }
    await this.#commit(wants[index]!, folder, layer.sizeBytes);
  }

  /** What a mirror damaged is fetched once more, from the registry itself. */
  async #unpack(want: LayerWant, folder: string, o: OneOptions & { index: number }) {
    const attempt = async (source: LayerSource) => {
      await mkdir(folder, { mode: 0o755 });
      const { digest, size, diffId } = want;
      const job = { kind: "unpack", folder, source, digest, size, diffId } as const;
      const onBytes = (bytes: number) => o.onBytes(o.index, bytes);
      const layer = await o.helpers.run(job, { signal: o.signal, onBytes });
      if (layer !== undefined) return layer;
      throw new CriError("INTERNAL", "the unpacking helper said nothing");
    };
    try {
      return await attempt(want.source);
    } catch (error) {
      const { source } = want;
      const session = source.kind === "registry" ? withoutMirrors(source.session) : undefined;
      if (session === undefined || codeOf(error) !== "DATA_LOSS") throw error;
      this.#log.warn("a mirror sent a damaged layer", {
        layer: want.digest,
        error: messageOf(error),
      });
      await rm(folder, { recursive: true, force: true });
      return await attempt({ kind: "registry", session });
    }
  }

  async #commit({ chainId, diffId }: LayerWant, folder: string, sizeBytes: number): Promise<void> {
    const short = shortId(chainId);
    const other = this.ids().find((id) => shortId(id) === short);
    if (other !== undefined) {
      throw new CriError("FAILED_PRECONDITION", `the layers ${chainId} and ${other} are too alike`);
    }
    await rename(folder, this.tree(chainId));
    const unsyncedBoot = this.#bootId;
    await this.#write({ version: 1, chainId, diffId, sizeBytes, unsyncedBoot });
  }

  async #write(file: LayerFile): Promise<void> {
    const path = join(this.#root, `${shortId(file.chainId)}.json`);
    await writeFileAtomic(path, JSON.stringify(file));
    this.#layers.set(file.chainId, file);
  }

  /** Layers that a power loss might still take, among those of this boot. */
  unsynced(): string[] {
    return this.ids().filter((id) => this.#layers.get(id)?.unsyncedBoot !== undefined);
  }

  /** Writes the file system back, by a helper, and takes the marks away. */
  async sync(helpers: UnpackHelpers, signal: AbortSignal): Promise<void> {
    const ids = this.unsynced();
    if (ids.length === 0) return;
    await helpers.run({ kind: "sync", folder: this.#root }, { signal });
    for (const id of ids) {
      const file = this.#layers.get(id);
      if (file === undefined) continue;
      this.#marking = id;
      try {
        await this.#write({ ...file, unsyncedBoot: undefined });
      } finally {
        this.#marking = undefined;
      }
    }
  }

  /** Removes the layers that nobody needs. */
  async collect(isNeeded: (chainId: string) => boolean): Promise<void> {
    const discarded: string[] = [];
    for (const id of this.ids().filter((id) => !isNeeded(id) && id !== this.#marking)) {
      // Without a wait in between: a pull sees the layer whole or not at all.
      this.#layers.delete(id);
      const aside = join(this.makeScratch(), "tree");
      renameSync(this.tree(id), aside);
      renameSync(join(this.#root, `${shortId(id)}.json`), join(aside, "..", "record"));
      discarded.push(join(aside, ".."));
    }
    for (const folder of discarded) await this.#discard(folder);
  }

  async #read(name: string): Promise<void> {
    const path = join(this.#root, name);
    try {
      const file = v.parse(LayerFile, JSON.parse(await readFile(path, "utf8")));
      if (name !== `${shortId(file.chainId)}.json`) throw new Error("its name is another layer's");
      if (file.unsyncedBoot === undefined || file.unsyncedBoot === this.#bootId) {
        await readdir(this.tree(file.chainId));
        this.#layers.set(file.chainId, file);
        return;
      }
      this.#log.warn("layer dropped: the node stopped before it was on the disk", { layer: name });
    } catch (error) {
      this.#log.warn("layer dropped: its record cannot be used", {
        file: path,
        error: messageOf(error),
      });
    }
    await rm(path, { force: true });
  }

  async #discard(path: string): Promise<void> {
    try {
      await rm(path, { recursive: true, force: true });
    } catch (error) {
      this.#log.warn("cannot remove a layer's remains", { path, error: messageOf(error) });
    }
  }
}

type OneOptions = EnsureOptions & { below: Promise<void>; downloads: Turns };
