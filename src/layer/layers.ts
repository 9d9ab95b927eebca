// Unpacked layers on disk: layers/l/SHORT is a layer's tree; beside it layers/SHORT.json says what it
// is, SHORT.list what it holds (layer_manifest.ts), SHORT.recipe how its tar stream is made again (tar_split.ts),
// and SHORT.blob is what it came from, where that is kept.
// Decision: a layer is synced after it is in use, not before. Until then its record carries the
// boot it was made in; where that boot ended without a sync, the layer is dropped and pulled again.
// Decision: a tree whose record is lost is no layer, but stays while a root is mounted from it: its
// containers go on. When the layer comes again, the tree is renamed l/SHORT.ANY to make room for it.
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync, renameSync, statSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { writeFileAtomic } from "../sys/file.ts";
import type { UnpackHelpers } from "./helpers.ts";
import { parseLayerFile, type LayerFile } from "./layer_file.ts";
import { digestOf } from "../base/digest.ts";
import { recipeLength } from "./tar_split.ts";
import type { StorageDriver } from "./storage.ts";

/** What is known of a layer. */
export type LayerFacts = Pick<LayerFile, "chainId" | "diffId" | "sizeBytes" | "inodes">;

/** A layer that was made in a scratch folder. */
export type MadeLayer = {
  chainId: string;
  diffId: string;
  sizeBytes: number;
  inodes: number;
  /** Of the blob, where there was one. */
  digest: string | undefined;
};

/** Short names keep 127 lower layers within mount(2)'s page of options. */
export function shortId(chainId: string): string {
  return chainId.slice(chainId.indexOf(":") + 1).slice(0, 12);
}

// In a scratch folder, while a layer is made.
export function treeIn(scratch: string): string {
  return join(scratch, "tree");
}
export function listingIn(scratch: string): string {
  return join(scratch, "list");
}
export function recipeIn(scratch: string): string {
  return join(scratch, "recipe");
}
export function blobIn(scratch: string): string {
  return join(scratch, "blob");
}

/** What lies beside a record, by the end of its name. */
const besides = [
  ["list", listingIn],
  ["recipe", recipeIn],
  ["blob", blobIn],
] as const;

export class LayerStore {
  readonly root: string;
  readonly #driver: StorageDriver;
  readonly #log: Log;
  readonly #layers = new Map<string, LayerFile>();
  /** A record that is being written anew: till then nothing is taken away. */
  #marking: Promise<unknown> = Promise.resolve();
  #discarding = Promise.resolve();
  /** By short name, of layers that are taken away, until the name is free. */
  readonly #leaving = new Map<string, Promise<unknown>>();
  /** Names in `trees` without a record, from which roots are mounted. */
  readonly #bereft = new Set<string>();
  readonly #bootId = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();

  private constructor(root: string, driver: StorageDriver, log: Log) {
    this.root = root;
    this.#driver = driver;
    this.#log = log;
  }

  /** mounted: short names of the layers that some root is mounted from. */
  static async open(
    root: string,
    o: { driver: StorageDriver; mounted: ReadonlySet<string>; log: Log },
  ): Promise<LayerStore> {
    const store = new LayerStore(root, o.driver, o.log);
    await mkdir(store.trees, { recursive: true, mode: 0o700 });
    // The "/" of an image without layers.
    await mkdir(join(store.trees, "empty"), { recursive: true, mode: 0o711 });
    await rm(store.#scratch, { recursive: true, force: true });
    await mkdir(store.#scratch, { mode: 0o700 });
    const names = await readdir(root);
    for (const name of names) {
      if (name.endsWith(".tmp")) await store.#discard(join(root, name));
      else if (name.endsWith(".json")) await store.#read(name);
    }
    const known = new Set([...store.#layers.values()].map(({ chainId }) => shortId(chainId)));
    for (const name of names) {
      const [short = "", end] = name.split(".", 2);
      if (besides.some(([beside]) => beside === end) && !known.has(short))
        await store.#discard(join(root, name));
    }
    for (const name of await readdir(store.trees)) {
      if (name !== "empty" && !known.has(name)) store.#bereft.add(name);
    }
    await store.#discardBereft(o.mounted);
    return store;
  }

  /** The folder that holds the layers' trees by their short names. */
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

  factsOf(chainId: string): LayerFacts | undefined {
    const file = this.#layers.get(chainId);
    if (file === undefined) return undefined;
    const { diffId, sizeBytes, inodes } = file;
    return { chainId, diffId, sizeBytes, inodes };
  }

  /** Each content once: layers that have the same share their files. */
  usageOf(chainIds: Iterable<string>): { bytes: bigint; inodes: bigint | undefined } {
    const byContent = new Map<string, LayerFile>();
    for (const id of chainIds) {
      const file = this.#layers.get(id);
      if (file !== undefined) byContent.set(file.diffId, file);
    }
    const files = [...byContent.values()];
    const areKnown = files.every(({ inodes }) => inodes !== undefined);
    return {
      bytes: files.reduce((sum, { sizeBytes }) => sum + BigInt(sizeBytes), 0n),
      inodes: areKnown ? files.reduce((sum, { inodes }) => sum + BigInt(inodes!), 0n) : undefined,
    };
  }

  ids(): string[] {
    return [...this.#layers.keys()];
  }

  tree(chainId: string): string {
    return join(this.trees, shortId(chainId));
  }

  /** What the layer holds; one of an earlier build has none. */
  listing(chainId: string): string | undefined {
    const path = this.#beside(chainId, "list");
    return this.has(chainId) && existsSync(path) ? path : undefined;
  }

  /** What the layer came from, where that was kept. */
  blob(chainId: string): { path: string; digest: string; size: number } | undefined {
    const digest = this.#layers.get(chainId)?.blob;
    const path = this.#beside(chainId, "blob");
    const size = statSync(path, { throwIfNoEntry: false })?.size;
    return digest === undefined || size === undefined ? undefined : { path, digest, size };
  }

  /** With which the layer's tar stream is made again; undefined where it cannot be. */
  recipe(chainId: string): { path: string; streamBytes: number } | undefined {
    const path = this.#beside(chainId, "recipe");
    const streamBytes = recipeLength(path);
    const diffId = this.diffIdOf(chainId) ?? "";
    const isEmpty = digestOf(Buffer.alloc(0), diffId) === diffId; // made of nothing
    return streamBytes === 0 && !isEmpty ? undefined : { path, streamBytes };
  }

  /** A layer with this content, above whichever others. */
  withContent(diffId: string): { tree: string; listing: string; recipe: string } | undefined {
    for (const { chainId, diffId: other } of this.#layers.values()) {
      if (other !== diffId) continue;
      const listing = this.listing(chainId);
      const recipe = this.#beside(chainId, "recipe");
      if (listing !== undefined) return { tree: this.tree(chainId), listing, recipe };
    }
    return undefined;
  }

  #beside(chainId: string, end: "json" | "list" | "recipe" | "blob"): string {
    return join(this.root, `${shortId(chainId)}.${end}`);
  }

  /** A folder of its own for somebody's temporary files; gone at the next start at the latest. */
  async makeScratch(): Promise<string> {
    const folder = join(this.#scratch, randomBytes(8).toString("hex"));
    await mkdir(folder, { mode: 0o700 });
    return folder;
  }

  /** Takes a layer over from the scratch folder that it was made in. */
  async commit(made: MadeLayer, scratch: string): Promise<void> {
    const { chainId, diffId, sizeBytes, inodes, digest } = made;
    const short = shortId(chainId);
    const other = this.ids().find((id) => shortId(id) === short);
    if (other !== undefined) {
      // 48 bits of a digest: nobody meets this by chance.
      const message = `layer ${chainId} would get the folder of layer ${other}: remove the images with that one`;
      throw new CriError("FAILED_PRECONDITION", message);
    }
    const isKept = digest !== undefined && existsSync(blobIn(scratch));
    const blob = isKept ? digest : undefined;
    const unsyncedBoot = this.#bootId;
    const whiteouts = this.#driver === "native" ? "native" : undefined;
    const file = { version: 1, chainId, diffId, sizeBytes, inodes, blob, whiteouts } as const;
    await this.#leaving.get(short);
    if (this.#bereft.has(short)) this.#renameBereft(short);
    try {
      for (const [end, inScratch] of besides) {
        if (end !== "list" && !existsSync(inScratch(scratch))) continue;
        await rename(inScratch(scratch), this.#beside(chainId, end));
      }
      await rename(treeIn(scratch), this.tree(chainId));
      const committed = { ...file, unsyncedBoot };
      await this.#write(committed);
      this.#layers.set(chainId, committed);
    } catch (error) {
      for (const path of await this.#takeAside(chainId)) await this.#discard(path);
      throw error;
    }
  }

  /** Puts a layer that was made again into the place of the one that is there. */
  async replace(made: MadeLayer, scratch: string): Promise<void> {
    const aside = await this.#takeAside(made.chainId);
    try {
      await this.commit(made, scratch);
    } finally {
      for (const path of aside) await this.#discard(path);
    }
  }

  async #write(file: LayerFile): Promise<void> {
    await writeFileAtomic(this.#beside(file.chainId, "json"), jsonText(file));
  }

  /** Layers that a power loss might still take, among those of this boot. */
  unsynced(): string[] {
    return this.ids().filter((id) => this.#layers.get(id)?.unsyncedBoot !== undefined);
  }

  /** Writes the file system back, by a helper, and takes the marks away. */
  async sync(helpers: UnpackHelpers, signal: AbortSignal): Promise<void> {
    const files = this.unsynced().map((id) => this.#layers.get(id)!);
    if (files.length === 0) return;
    await helpers.run({ kind: "sync", folder: this.root }, { signal });
    for (const file of files) {
      const { chainId } = file;
      if (this.#layers.get(chainId) !== file) continue; // gone, or made again since
      const synced = { ...file, unsyncedBoot: undefined };
      const written = this.#write(synced);
      this.#marking = written.catch(() => {});
      await written;
      if (this.#layers.get(chainId) === file) this.#layers.set(chainId, synced);
    }
  }

  /** Removes the layers that nobody needs. mounted: as for open(). */
  async collect(
    mounted: ReadonlySet<string>,
    isNeeded: (chainId: string) => boolean,
  ): Promise<void> {
    const ids = this.ids().filter((id) => !mounted.has(shortId(id)) && !isNeeded(id));
    const aside = ids.map((id) => this.#takeAside(id));
    const before = this.#discarding;
    this.#discarding = (async () => {
      await before; // whoever waits for this finds the space free, whoever began to free it
      for (const paths of aside) for (const path of await paths) await this.#discard(path);
      await this.#discardBereft(mounted);
    })();
    await this.#discarding;
  }

  /**
   * From its call on it is no layer, and another one takes its place when it is out of the way. Nothing is
   * made: a full disk must not keep it. @returns what is to be removed.
   */
  #takeAside(chainId: string): Promise<string[]> {
    this.#layers.delete(chainId);
    const short = shortId(chainId);
    const moved = this.#moveAside(chainId).finally(() => this.#leaving.delete(short));
    this.#leaving.set(short, moved);
    return moved;
  }

  async #moveAside(chainId: string): Promise<string[]> {
    await this.#marking;
    const aside = join(this.#scratch, randomBytes(8).toString("hex"));
    const moves: [from: string, to: string][] = [
      [this.#beside(chainId, "json"), `${aside}.json`], // first: the next start sees no layer either
      [this.tree(chainId), aside],
      ...besides.map(([end]): [string, string] => [this.#beside(chainId, end), `${aside}.${end}`]),
    ];
    for (const [from, to] of moves) {
      try {
        await rename(from, to);
      } catch (error) {
        if (errnoOf(error) !== "ENOENT") this.#tellOfRemains(from, error);
      }
    }
    return moves.map(([, to]) => to);
  }

  /** In one step with what is known of it: its name may be wanted. Mounted roots do not mind. */
  #renameBereft(short: string): void {
    const name = `${short}.${randomBytes(4).toString("hex")}`;
    renameSync(join(this.trees, short), join(this.trees, name));
    this.#bereft.delete(short);
    this.#bereft.add(name);
  }

  async #discardBereft(mounted: ReadonlySet<string>): Promise<void> {
    const names = [...this.#bereft].filter((name) => !mounted.has(name.split(".", 1)[0]!));
    for (const name of names) {
      const [tree, aside] = [join(this.trees, name), join(this.#scratch, name)];
      try {
        if (!this.#bereft.has(name)) continue; // renamed meanwhile: the next collection finds it
        renameSync(tree, aside);
        this.#bereft.delete(name);
        await this.#discard(aside);
      } catch (error) {
        this.#tellOfRemains(tree, error);
      }
    }
  }

  async #read(name: string): Promise<void> {
    const path = join(this.root, name);
    try {
      const file = parseLayerFile(await readFile(path, "utf8"));
      if (name !== `${shortId(file.chainId)}.json`) throw new Error("its name is another layer's");
      if (file.whiteouts === "native" && this.#driver !== "native") {
        throw new Error("it was unpacked for storage-driver native");
      }
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
    await this.#discard(path);
  }

  async #discard(path: string): Promise<void> {
    try {
      await rm(path, { recursive: true, force: true });
    } catch (error) {
      this.#tellOfRemains(path, error);
    }
  }

  #tellOfRemains(path: string, error: unknown): void {
    this.#log.warn("cannot remove a layer's remains", { path, error: messageOf(error) });
  }
}
