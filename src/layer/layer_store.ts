// Stores unpacked layers on disk: layers/l/SHORT is a layer's tree. SHORT is the beginning of its chain ID: 12 digits,
// or more where another layer has those, since an image may be made for that. Next to it are layers/SHORT.json (its
// record, layer_record.ts), SHORT.list (its manifest, layer_manifest.ts), SHORT.recipe (its tar-split,
// tar_split.ts) and, if it is kept, SHORT.blob.
// Decision: a layer is synced to disk after its first use, not before. Until then its record names the
// current boot; if that boot ends without a sync, the layer is dropped and pulled again.
// Decision: a tree without a record is not a layer, but stays while a root is mounted from it, so that its
// containers go on. If the layer is pulled again, that orphaned tree is first renamed to l/SHORT.RANDOM.
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync, renameSync, statSync } from "node:fs";
import { mkdir, readdir, readFile, rename } from "node:fs/promises";
import { join } from "node:path";
import { codeOf, errnoOf, messageOf } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { KeyedLock } from "../base/keyed_lock.ts";
import { refuseNewer } from "../base/record_version.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { Removals } from "./removals.ts";
import type { UnpackPool } from "./unpack_pool.ts";
import { commonAccess, type LayerAccess } from "./layer_access.ts";
import { parseLayerRecord, type LayerRecord } from "./layer_record.ts";
import { digestOf } from "../base/digest.ts";
import { tarSplitStreamBytes } from "./tar_split.ts";
import type { StorageDriver } from "./storage_driver.ts";

export type LayerInfo = Pick<LayerRecord, "chainId" | "diffId" | "sizeBytes" | "inodes">;

/** A complete layer in a scratch folder; digest: of the blob, undefined for a cloned layer. */
type FinishedLayer = LayerInfo & {
  inodes: number;
  digest: string | undefined;
  restricted?: LayerAccess;
};

type LayerStoreOptions = {
  driver: StorageDriver;
  /** Short names of the layers from which roots are mounted. */
  mounted: ReadonlySet<string>;
  log: Log;
  removals?: Removals;
};

/** Lengths of short names: with the first one 127 lower layers fit into mount(2)'s page of options. */
const nameLengths = [12, 16, 24, 32, 64];

/** Returns the names that a layer may have, the shortest first. */
function namesOf(chainId: string): string[] {
  const digits = chainId.slice(chainId.indexOf(":") + 1);
  return nameLengths.map((length) => digits.slice(0, length));
}

/** Paths in the scratch folder of a layer that is being made. */
export function scratchPaths(scratch: string) {
  const at = (name: string) => join(scratch, name);
  return { tree: at("tree"), manifest: at("list"), tarSplit: at("recipe"), blob: at("blob") };
}

function sameJson(a: unknown, b: unknown): boolean {
  return jsonText(a) === jsonText(b);
}

/** Files next to a record, by suffix; suffixes are part of the format on disk. */
const sidecars = { list: "manifest", recipe: "tarSplit", blob: "blob" } as const;

export class LayerStore {
  readonly root: string;
  readonly #driver: StorageDriver;
  readonly #log: Log;
  readonly #layers = new Map<string, LayerRecord>();
  /** Short name → chain ID of each layer that is here or is being committed; a name is taken without an await. */
  readonly #names = new Map<string, string>();
  readonly #commits = new KeyedLock("layer commit");
  /** Those whose sync has begun. */
  #syncing = new Set<LayerRecord>();
  /** Writes of records that were there before. */
  #rewriting: Promise<unknown> = Promise.resolve();
  readonly removals: Removals;
  /** Short names of layers whose files are being moved to scratch → completion. */
  readonly #evicting = new Map<string, Promise<unknown>>();
  /** Names in `trees` that have no record. */
  readonly #orphanedTrees = new Set<string>();
  readonly #bootId = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();

  private constructor(root: string, o: LayerStoreOptions) {
    this.root = root;
    this.#driver = o.driver;
    this.#log = o.log;
    this.removals = o.removals ?? new Removals(o.log);
  }

  /** Opens the store without waiting for the removal of interrupted pulls' leftovers, which may be a million files. */
  static async open(root: string, o: LayerStoreOptions): Promise<LayerStore> {
    const store = new LayerStore(root, o);
    await mkdir(store.trees, { recursive: true, mode: 0o700 });
    // The only lower layer of an image without layers.
    await mkdir(join(store.trees, "empty"), { recursive: true, mode: 0o711 });
    await mkdir(store.#scratch, { recursive: true, mode: 0o700 });
    const scratch = await readdir(store.#scratch);
    const names = await readdir(root);
    for (const name of names) {
      if (name.endsWith(".tmp")) await store.removals.remove(join(root, name));
      else if (name.endsWith(".json")) await store.#read(name);
    }
    const known = store.#names;
    for (const name of names) {
      const [short = "", suffix = ""] = name.split(".", 2);
      if (Object.hasOwn(sidecars, suffix) && !known.has(short))
        await store.removals.remove(join(root, name));
    }
    for (const name of await readdir(store.trees)) {
      if (name !== "empty" && !known.has(name)) store.#orphanedTrees.add(name);
    }
    const left = scratch.map((name) => join(store.#scratch, name));
    const removal = store.removals.begin(async () => {
      const orphans = store.#removeOrphanedTrees(o.mounted);
      await store.removals.remove(...left);
      await orphans;
    });
    removal.catch(logFailure(o.log, "removing what interrupted pulls have left failed"));
    return store;
  }

  get trees(): string {
    return join(this.root, "l");
  }

  get #scratch(): string {
    return join(this.root, "scratch");
  }

  has(chainId: string): boolean {
    return this.#layers.has(chainId);
  }

  sizeOf(chainId: string): number {
    return this.#layers.get(chainId)?.sizeBytes ?? 0;
  }

  diffIdOf(chainId: string): string | undefined {
    return this.#layers.get(chainId)?.diffId;
  }

  infoOf(chainId: string): LayerInfo | undefined {
    const record = this.#layers.get(chainId);
    if (record === undefined) return undefined;
    const { diffId, sizeBytes, inodes } = record;
    return { chainId, diffId, sizeBytes, inodes };
  }

  /** Returns the disk usage of layers; counts each content once, since layers with the same diff ID share files. */
  usageOf(chainIds: Iterable<string>): { bytes: bigint; inodes: bigint | undefined } {
    const byContent = new Map<string, LayerRecord>();
    for (const id of chainIds) {
      const record = this.#layers.get(id);
      if (record !== undefined) byContent.set(record.diffId, record);
    }
    const records = [...byContent.values()];
    const areKnown = records.every(({ inodes }) => inodes !== undefined);
    return {
      bytes: records.reduce((sum, { sizeBytes }) => sum + BigInt(sizeBytes), 0n),
      inodes: areKnown ? records.reduce((sum, { inodes }) => sum + BigInt(inodes!), 0n) : undefined,
    };
  }

  ids(): string[] {
    return [...this.#layers.keys()];
  }

  tree(chainId: string): string {
    return join(this.trees, this.nameOf(chainId));
  }

  /** The name of the layer's tree in `trees`. */
  nameOf(chainId: string): string {
    const names = namesOf(chainId);
    return names.find((name) => this.#names.get(name) === chainId) ?? names[0]!;
  }

  /** Takes a name that no other layer has. */
  #takeName(chainId: string): string {
    const isFree = (name: string) => (this.#names.get(name) ?? chainId) === chainId;
    const name = namesOf(chainId).find(isFree);
    if (name === undefined) throw new Error(`layer ${chainId}: all its names are taken`);
    this.#names.set(name, chainId);
    return name;
  }

  /** The path of the layer's manifest; undefined for layers of an early build. */
  manifest(chainId: string): string | undefined {
    const path = this.#sidecar(chainId, "list");
    return this.has(chainId) && existsSync(path) ? path : undefined;
  }

  /** The layer's blob, if it was kept. */
  blob(chainId: string): { path: string; digest: string; size: number } | undefined {
    const digest = this.#layers.get(chainId)?.blob;
    const path = this.#sidecar(chainId, "blob");
    const size = statSync(path, { throwIfNoEntry: false })?.size;
    return digest === undefined || size === undefined ? undefined : { path, digest, size };
  }

  /** The path of a kept blob, of whichever layer. */
  blobPath(digest: string): string | undefined {
    const kept = [...this.#layers.values()].filter(({ blob }) => blob === digest);
    const paths = kept.map(({ chainId }) => this.#sidecar(chainId, "blob"));
    return paths.find((path) => existsSync(path));
  }

  /** The layer's tar-split; undefined if the tar stream cannot be rebuilt. */
  tarSplit(chainId: string): { path: string; streamBytes: number } | undefined {
    const path = this.#sidecar(chainId, "recipe");
    const streamBytes = tarSplitStreamBytes(path);
    const diffId = this.diffIdOf(chainId) ?? "";
    const isEmpty = digestOf(Buffer.alloc(0), diffId) === diffId; // an empty blob
    return streamBytes === 0 && !isEmpty ? undefined : { path, streamBytes };
  }

  /** Finds a layer with this content above any other layers. */
  findByContent(diffId: string): { tree: string; manifest: string; tarSplit: string } | undefined {
    for (const { chainId, diffId: other } of this.#layers.values()) {
      if (other !== diffId) continue;
      const manifest = this.manifest(chainId);
      const tarSplit = this.#sidecar(chainId, "recipe");
      if (manifest !== undefined) return { tree: this.tree(chainId), manifest, tarSplit };
    }
    return undefined;
  }

  /** Who may reuse this content, above any other layers. */
  accessTo(diffId: string): LayerAccess {
    const all = [...this.#layers.values()].filter((one) => one.diffId === diffId);
    return commonAccess(all.map(({ restricted }) => restricted));
  }

  /** Changes who may reuse this content. */
  async changeAccess(diffId: string, change: (old: LayerAccess) => LayerAccess): Promise<void> {
    for (const [chainId, { diffId: other }] of this.#layers) {
      if (other !== diffId) continue;
      using _ = await this.#commits.acquire(chainId);
      const record = this.#layers.get(chainId);
      const restricted = change(this.accessTo(diffId));
      if (record === undefined || sameJson(record.restricted, restricted)) continue;
      const changed = { ...record, restricted };
      this.#layers.set(chainId, changed);
      await this.#rewrite(changed, { fsync: record.unsyncedBoot === undefined });
    }
  }

  /** Writes a record again; evictions wait for it. The caller holds the layer's lock. */
  async #rewrite(record: LayerRecord, { fsync }: { fsync: boolean }): Promise<void> {
    const written = this.#write(record, { fsync });
    this.#rewriting = Promise.all([this.#rewriting, written.catch(() => {})]);
    await written;
  }

  #sidecar(chainId: string, suffix: string): string {
    return join(this.root, `${this.nameOf(chainId)}.${suffix}`);
  }

  /** Creates a folder for a caller's temporary files; the next start removes it at the latest. */
  async makeScratch(): Promise<string> {
    const folder = join(this.#scratch, randomBytes(8).toString("hex"));
    await mkdir(folder, { mode: 0o700 });
    return folder;
  }

  /** Moves a layer from its scratch folder into the store, unless it is there. */
  async commit(made: FinishedLayer, scratch: string): Promise<void> {
    await this.#commits.run(made.chainId, undefined, async () => {
      if (!this.has(made.chainId)) await this.#commit(made, scratch);
    });
  }

  async #commit(made: FinishedLayer, scratch: string): Promise<void> {
    const { chainId, diffId, sizeBytes, inodes, digest, restricted } = made;
    const paths = scratchPaths(scratch);
    const short = this.#takeName(chainId);
    const blob = existsSync(paths.blob) ? digest : undefined;
    const whiteouts = this.#driver === "native" ? "native" : undefined;
    const content = { chainId, diffId, sizeBytes, inodes, blob, whiteouts, restricted } as const;
    const record: LayerRecord = { version: 1, ...content, unsyncedBoot: this.#bootId };
    await this.#evicting.get(short);
    if (this.#orphanedTrees.has(short)) this.#renameOrphanedTree(short);
    try {
      for (const [suffix, name] of Object.entries(sidecars)) {
        if (suffix !== "list" && !existsSync(paths[name])) continue;
        await rename(paths[name], this.#sidecar(chainId, suffix));
      }
      await rename(paths.tree, this.tree(chainId));
      await this.#write(record);
      this.#layers.set(chainId, record);
    } catch (error) {
      await this.removals.remove(...(await this.#evict(chainId)));
      throw error;
    }
  }

  /** Replaces a layer by one that was made again. */
  async replace(made: FinishedLayer, scratch: string): Promise<void> {
    const { restricted } = this.#layers.get(made.chainId) ?? {};
    const evicted = await this.#evict(made.chainId);
    try {
      await this.commit({ ...made, restricted }, scratch);
    } finally {
      await this.removals.remove(...evicted);
    }
  }

  async #write(record: LayerRecord, { fsync = false } = {}): Promise<void> {
    await writeFileAtomic(this.#sidecar(record.chainId, "json"), jsonText(record), { fsync });
  }

  /** Layers that a power failure would drop. */
  unsynced(): string[] {
    return this.ids().filter((id) => this.#layers.get(id)?.unsyncedBoot !== undefined);
  }

  /** Tests whether a layer is synced or being synced; a sync under way does not cover what is written from now on. */
  isSynced(chainId: string): boolean {
    const record = this.#layers.get(chainId);
    if (record === undefined) return false;
    return record.unsyncedBoot === undefined || this.#syncing.has(record);
  }

  /** Syncs the file system in an unpack helper, and then marks the layers as synced. */
  async sync(helpers: UnpackPool, signal: AbortSignal): Promise<void> {
    const records = this.unsynced().map((id) => this.#layers.get(id)!);
    if (records.length === 0) return;
    using _ = this.#beginSync(records);
    await helpers.run({ kind: "sync", folder: this.root }, { signal });
    for (const record of records) {
      const { chainId } = record;
      using _ = await this.#commits.acquire(chainId);
      if (this.#layers.get(chainId) !== record) continue; // removed, replaced or changed meanwhile
      const synced = { ...record, unsyncedBoot: undefined };
      // With fsync: otherwise a power loss could leave an empty record in place of the one that sync() has covered.
      await this.#rewrite(synced, { fsync: true });
      if (this.#layers.get(chainId) === record) this.#layers.set(chainId, synced);
    }
  }

  #beginSync(records: LayerRecord[]): Disposable {
    this.#syncing = new Set(records);
    return { [Symbol.dispose]: () => (this.#syncing = new Set()) };
  }

  /**
   * Removes the layers that are not needed, and waits for these removals, but not for earlier ones. mounted: as for
   * open().
   */
  async collect(
    mounted: ReadonlySet<string>,
    isNeeded: (chainId: string) => boolean,
  ): Promise<void> {
    const ids = this.ids().filter((id) => !mounted.has(this.nameOf(id)) && !isNeeded(id));
    const evicted = ids.map((id) => this.#evict(id));
    await this.removals.begin(async () => {
      for (const paths of evicted) await this.removals.remove(...(await paths));
      await this.#removeOrphanedTrees(mounted);
    });
  }

  /**
   * Drops a layer at once and moves its files to scratch; a new layer of that name waits for the move. An eviction
   * creates nothing, so it works on a full disk. @returns the paths to remove.
   */
  #evict(chainId: string): Promise<string[]> {
    this.#layers.delete(chainId);
    const short = this.nameOf(chainId);
    const moves = this.#movesToScratch(chainId);
    this.#names.delete(short);
    const moved = this.#moveToScratch(moves).finally(() => this.#evicting.delete(short));
    this.#evicting.set(short, moved);
    return moved;
  }

  #movesToScratch(chainId: string): [from: string, to: string][] {
    const aside = join(this.#scratch, randomBytes(8).toString("hex"));
    const moves: [from: string, to: string][] = [
      [this.#sidecar(chainId, "json"), `${aside}.json`], // first: without a record the next start sees no layer
      [this.tree(chainId), aside],
    ];
    for (const suffix of Object.keys(sidecars)) {
      moves.push([this.#sidecar(chainId, suffix), `${aside}.${suffix}`]);
    }
    return moves;
  }

  async #moveToScratch(moves: [from: string, to: string][]): Promise<string[]> {
    await this.#rewriting;
    for (const [from, to] of moves) {
      try {
        await rename(from, to);
      } catch (error) {
        if (errnoOf(error) !== "ENOENT") this.removals.warn(from, error);
      }
    }
    return moves.map(([, to]) => to);
  }

  /** Synchronous, so that the set never disagrees with the disk. Renaming does not affect mounted roots. */
  #renameOrphanedTree(short: string): void {
    const name = `${short}.${randomBytes(4).toString("hex")}`;
    renameSync(join(this.trees, short), join(this.trees, name));
    this.#orphanedTrees.delete(short);
    this.#orphanedTrees.add(name);
  }

  async #removeOrphanedTrees(mounted: ReadonlySet<string>): Promise<void> {
    const names = [...this.#orphanedTrees].filter((name) => !mounted.has(name.split(".", 1)[0]!));
    const asides: string[] = [];
    // All are renamed before the first await, so that no other call has to wait until they are removed.
    for (const name of names) {
      const tree = join(this.trees, name);
      // A random name: another removal may still be working on an earlier tree of the same name.
      const aside = join(this.#scratch, `${name}.${randomBytes(8).toString("hex")}`);
      try {
        renameSync(tree, aside);
        this.#orphanedTrees.delete(name);
        asides.push(aside);
      } catch (error) {
        this.removals.warn(tree, error);
      }
    }
    await this.removals.remove(...asides);
  }

  /** @throws CriError FAILED_PRECONDITION for the record of a newer isulad-ts. */
  async #read(name: string): Promise<void> {
    const path = join(this.root, name);
    try {
      const text = await readFile(path, "utf8");
      refuseNewer(text, { what: `layer record ${path}`, version: 1 });
      const record = parseLayerRecord(text);
      const { chainId, unsyncedBoot } = record;
      const short = name.slice(0, -".json".length);
      if (!namesOf(chainId).includes(short) || this.#layers.has(chainId))
        throw new Error("the file name does not match its chain ID");
      if (record.whiteouts === "native" && this.#driver !== "native") {
        throw new Error("it was unpacked for storage-driver native");
      }
      if (unsyncedBoot === undefined || unsyncedBoot === this.#bootId) {
        await readdir(join(this.trees, short));
        this.#names.set(short, chainId);
        this.#layers.set(chainId, record);
        return;
      }
      const message = "layer dropped: the node stopped before it was synced to disk";
      this.#log.warn(message, { layer: name });
    } catch (error) {
      if (codeOf(error) === "FAILED_PRECONDITION") throw error;
      const reason = { file: path, error: messageOf(error) };
      this.#log.warn("layer dropped: its record is invalid", reason);
    }
    await this.removals.remove(path);
  }
}
