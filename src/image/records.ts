// Stores the image records, one file each, and finds an image by name.
// Decision: a file is synced to disk at once only if the layers of its image are on disk. Otherwise one sync of the
// file system covers the file and the layers later; a power loss before that sync drops the image in any case.
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import type { Log } from "../base/log.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { refuseNewer } from "../base/record_version.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { digestOf, isDigest } from "../base/digest.ts";
import { checked } from "../base/schema.ts";
import { ImageSettings, type ImageConfig } from "./manifest.ts";
import { nameOrNone } from "../registry/reference.ts";
import { addOrigin, type ImageOrigin } from "./image_origin.ts";
import { OriginCache } from "./origin_cache.ts";
import { removeTree } from "../sys/remove_tree.ts";

export type ImageRecord = {
  /** Digest of the image's config: "sha256:…". */
  id: string;
  repoTags: string[];
  repoDigests: string[];
  /** Size of the config and all unpacked layers. */
  sizeBytes: bigint;
  config: ImageConfig;
  /** Chain ids, lowest first. */
  layers: string[];
  /** Time of the last pull or load. */
  pulledAtNs: bigint;
  /** Absent for images of an earlier build. */
  source?: ImageSource;
  /** The runtime handler it was pulled for; absent: the default. */
  runtimeHandler?: string;
};

/** The reference pulled and the host that served it, or the file loaded. */
export type ImageSource = v.InferOutput<typeof ImageSource>;
const ImageSource = v.variant("kind", [
  v.object({ kind: v.literal("registry"), name: v.string(), host: v.string() }),
  v.object({ kind: v.literal("file"), path: v.string() }),
]);

const bigint = v.pipe(
  v.string(),
  v.regex(/^\d+$/),
  v.transform((digits) => BigInt(digits)),
);

const ImageFile = v.object({
  version: v.literal(1),
  id: v.string(),
  repoTags: v.array(v.string()),
  repoDigests: v.array(v.string()),
  sizeBytes: bigint,
  config: v.object({
    ...ImageSettings.entries,
    architecture: v.string(),
    os: v.string(),
    variant: v.optional(v.string()),
  }),
  layers: v.array(v.string()),
  pulledAtNs: bigint,
  source: v.optional(ImageSource),
  runtimeHandler: v.optional(v.string()),
});

type AddOptions = {
  origin?: ImageOrigin | undefined;
  /** Tests whether these layers would outlive a power loss. */
  isSynced?: (layers: readonly string[]) => boolean;
};

/** again: the same files were just written without fsync. */
type How = { fsync: boolean; again: boolean };

/** Writes an image's files, with fsync if its layers are synced. areSynced: true also while their sync is under way. */
async function withLayers(
  areSynced: () => boolean,
  write: (how: How) => Promise<void>,
): Promise<void> {
  const fsync = areSynced();
  await write({ fsync, again: false });
  // A sync of the layers that began meanwhile may not cover the files.
  if (!fsync && areSynced()) await write({ fsync: true, again: true });
}

export class ImageRecords {
  readonly #folder: string;
  readonly #log: Log;
  readonly #images = new Map<string, ImageRecord>();
  readonly #origins: OriginCache;
  #unreadable = 0;

  private constructor(folder: string, log: Log) {
    this.#folder = folder;
    this.#log = log;
    this.#origins = new OriginCache(log);
  }

  static async open(folder: string, log: Log): Promise<ImageRecords> {
    const records = new ImageRecords(folder, log);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const names = await readdir(folder);
    for (const name of names) {
      if (name.endsWith(".tmp")) await records.#discard(join(folder, name));
      else if (name.endsWith(".json")) await records.#read(join(folder, name));
    }
    await records.#repairTags();
    const known = new Set([...records.#images.keys()].map(stemOf));
    for (const name of names) {
      const [, stem] = /^(.*)\.(?:config|origins)$/.exec(name) ?? [];
      if (stem !== undefined && !known.has(stem)) await records.#discard(join(folder, name));
    }
    return records;
  }

  /** Gives a tag that two images have, after a crash during its move, to the one pulled last. */
  async #repairTags(): Promise<void> {
    const owners = new Map<string, string>();
    const byTime = this.list().toReversed();
    for (const { id, repoTags } of byTime) for (const tag of repoTags) owners.set(tag, id);
    for (const image of byTime) {
      const repoTags = image.repoTags.filter((tag) => owners.get(tag) === image.id);
      if (repoTags.length === image.repoTags.length) continue;
      const repaired = { ...image, repoTags };
      this.#images.set(image.id, repaired);
      try {
        await this.#write(repaired, { fsync: true });
      } catch (error) {
        // A full disk must not prevent the start; the next one repairs again.
        const message =
          "cannot write an image record whose tag moved to another image, retrying at the next start";
        this.#log.warn(message, { image: image.id, error: messageOf(error) });
      }
    }
  }

  /** How many records open() could not read. */
  get unreadable(): number {
    return this.#unreadable;
  }

  /** Returns the last pulled image first. */
  list(): ImageRecord[] {
    return [...this.#images.values()].toSorted(lastPulledFirst);
  }

  get(id: string): ImageRecord | undefined {
    return this.#images.get(id);
  }

  /**
   * Finds an image by name, tag, digest, name@digest, id, or a prefix of its id.
   * @throws CriError INVALID_ARGUMENT for an ambiguous prefix.
   */
  find(ref: string): ImageRecord | undefined {
    const id = /^[0-9a-f]{64}$/.test(ref) ? `sha256:${ref}` : ref;
    if (isDigest(id)) {
      return this.#images.get(id) ?? this.#first((image) => hasDigest(image, id));
    }
    return this.#byName(ref) ?? this.#byPrefix(ref);
  }

  #byName(ref: string): ImageRecord | undefined {
    const name = nameOrNone(ref);
    if (name === undefined) return undefined;
    return this.#first(
      (image) => image.repoTags.includes(name) || image.repoDigests.includes(name),
    );
  }

  #byPrefix(ref: string): ImageRecord | undefined {
    const prefix = ref.replace(/^sha256:/, "");
    if (!/^[0-9a-f]{3,63}$/.test(prefix)) return undefined;
    const matches = this.list().filter(({ id }) => id.startsWith(`sha256:${prefix}`));
    if (matches.length <= 1) return matches[0];
    const message = `the image id ${ref} is ambiguous: ${matches.map(({ id }) => id).join(", ")}`;
    throw new CriError("INVALID_ARGUMENT", message);
  }

  #first(matches: (image: ImageRecord) => boolean): ImageRecord | undefined {
    return this.list().find(matches);
  }

  /** Returns the original bytes of the config; undefined if they are missing or damaged. */
  async configOf(id: string): Promise<Buffer | undefined> {
    const bytes = await readFile(this.#path(id, "config")).catch(() => undefined);
    return bytes !== undefined && digestOf(bytes, id) === id ? bytes : undefined;
  }

  /** Returns where the image was pulled from; empty for others, and if the file is damaged. */
  originsOf(id: string): Promise<ImageOrigin[]> {
    return this.#origins.read(this.#path(id, "origins"));
  }

  /** Adds an image, or names to an existing one; moves its tags from other images. */
  async add(
    image: ImageRecord,
    config: Uint8Array,
    { origin, isSynced = () => true }: AddOptions = {},
  ): Promise<ImageRecord> {
    const known = this.#images.get(image.id);
    const added: ImageRecord = {
      ...image,
      repoTags: union(known?.repoTags, image.repoTags),
      repoDigests: union(known?.repoDigests, image.repoDigests),
    };
    const isAdded = (tag: string) => added.repoTags.includes(tag);
    const moved = this.list().filter(
      ({ id, repoTags }) => id !== image.id && repoTags.some(isAdded),
    );
    try {
      await withLayers(
        () => isSynced(added.layers),
        (how) => this.#writeAll(added, config, { origin, ...how }),
      );
    } catch (error) {
      // On a full disk the config, which is written first, would stay until the next start.
      if (known === undefined) await this.remove(image.id).catch(() => {});
      throw error;
    }
    for (const other of moved) {
      const repoTags = other.repoTags.filter((tag) => !isAdded(tag));
      await withLayers(
        () => isSynced(other.layers),
        (how) => this.#write({ ...other, repoTags }, how),
      );
    }
    return added;
  }

  async #writeAll(
    image: ImageRecord,
    config: Uint8Array,
    { origin, fsync, again }: How & { origin: ImageOrigin | undefined },
  ): Promise<void> {
    if (again || (await this.configOf(image.id)) === undefined)
      await writeFileAtomic(this.#path(image.id, "config"), config, { fsync });
    if (origin !== undefined) {
      const origins = addOrigin(await this.originsOf(image.id), origin);
      const text = jsonText({ version: 1, origins });
      const path = this.#path(image.id, "origins");
      await step("image-origins", () => writeFileAtomic(path, text, { fsync }));
    }
    await this.#write(image, { fsync });
  }

  async remove(id: string): Promise<void> {
    this.#images.delete(id);
    this.#origins.forget(this.#path(id, "origins"));
    for (const suffix of ["json", "config", "origins"] as const) {
      await rm(this.#path(id, suffix), { force: true });
    }
  }

  #path(id: string, suffix: "json" | "config" | "origins"): string {
    return join(this.#folder, `${stemOf(id)}.${suffix}`);
  }

  async #write(image: ImageRecord, { fsync }: Pick<How, "fsync">): Promise<void> {
    const numbers = { sizeBytes: String(image.sizeBytes), pulledAtNs: String(image.pulledAtNs) };
    const text = jsonText({ version: 1, ...image, ...numbers });
    await writeFileAtomic(this.#path(image.id, "json"), text, { fsync });
    this.#images.set(image.id, image);
  }

  /** @throws CriError FAILED_PRECONDITION for the record of a newer isulad-ts. */
  async #read(path: string): Promise<void> {
    try {
      const text = await readFile(path, "utf8");
      refuseNewer(text, { what: `image record ${path}`, version: 1 });
      const { version, ...image } = checked(ImageFile, trustedJsonValue(text));
      if (path !== this.#path(image.id, "json"))
        throw new Error(`version ${version}, for another image`);
      this.#images.set(image.id, image);
    } catch (error) {
      if (codeOf(error) === "FAILED_PRECONDITION") throw error;
      this.#unreadable++;
      const aside = `${path}.unreadable`;
      const reason = { file: aside, error: messageOf(error) };
      this.#log.warn("cannot read an image record, setting it aside", reason);
      await this.#clear(path, () => rename(path, aside));
    }
  }

  /** Removes a partial write of an earlier daemon. */
  async #discard(path: string): Promise<void> {
    await this.#clear(path, () => removeTree(path));
  }

  /** Best effort: a file that cannot be cleared must not prevent the start. */
  async #clear(file: string, action: () => Promise<void>): Promise<void> {
    try {
      await action();
    } catch (error) {
      const reason = { file, error: messageOf(error) };
      this.#log.warn("cannot clear a file among the image records", reason);
    }
  }
}

/** Returns the name of an image's files, without suffix. */
function stemOf(id: string): string {
  return id.replace(/^sha256:/, "");
}

function lastPulledFirst(a: ImageRecord, b: ImageRecord): number {
  if (a.pulledAtNs !== b.pulledAtNs) return a.pulledAtNs > b.pulledAtNs ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

function hasDigest({ repoDigests }: ImageRecord, digest: string): boolean {
  return repoDigests.some((name) => name.endsWith(`@${digest}`));
}

function union(known: string[] = [], more: string[]): string[] {
  return [...new Set([...known, ...more])];
}
