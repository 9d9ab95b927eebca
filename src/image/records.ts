// What is known about the node's images: one file an image, and how a name finds it.
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { digestOf } from "../base/digest.ts";
import { ImageSettings, type ImageConfig } from "./manifest.ts";
import { isDigest } from "../base/digest.ts";
import { nameOrNone } from "../registry/reference.ts";

export type ImageRecord = {
  /** Digest of the image's config: "sha256:…". */
  id: string;
  repoTags: string[];
  repoDigests: string[];
  /** Content of all layers, unpacked. */
  sizeBytes: bigint;
  config: ImageConfig;
  /** Chain ids, lowest first. */
  layers: string[];
  /** When it came, or came again. */
  pulledAtNs: bigint;
  /** Unknown of images that an earlier build fetched. */
  source?: ImageSource;
  /** The handler that it was pulled for; absent: the default one. */
  runtimeHandler?: string;
};

/** Where an image came from: a registry's name for it and the host that had it, or a file. */
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

export class ImageRecords {
  readonly #folder: string;
  readonly #log: Log;
  readonly #images = new Map<string, ImageRecord>();

  private constructor(folder: string, log: Log) {
    this.#folder = folder;
    this.#log = log;
  }

  static async open(folder: string, log: Log): Promise<ImageRecords> {
    const records = new ImageRecords(folder, log);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const names = await readdir(folder);
    for (const name of names) {
      if (name.endsWith(".tmp")) await records.#discard(join(folder, name));
      else if (name.endsWith(".json")) await records.#read(join(folder, name));
    }
    await records.#settleTags();
    for (const name of names.filter((name) => name.endsWith(".config"))) {
      const path = join(folder, name);
      const isOf = ({ id }: ImageRecord) => records.#configPath(id) === path;
      if (!records.list().some(isOf)) await records.#discard(path);
    }
    return records;
  }

  /** A tag is of one image: where its move was cut off, of the one that was pulled later. */
  async #settleTags(): Promise<void> {
    const owners = new Map<string, string>();
    const byTime = this.list().toReversed();
    for (const { id, repoTags } of byTime) for (const tag of repoTags) owners.set(tag, id);
    for (const image of byTime) {
      const repoTags = image.repoTags.filter((tag) => owners.get(tag) === image.id);
      if (repoTags.length === image.repoTags.length) continue;
      const settled = { ...image, repoTags };
      this.#images.set(image.id, settled);
      try {
        await this.#write(settled);
      } catch (error) {
        // The next start settles it again; the disk may be full, which is no reason not to start.
        const what = { image: image.id, error: messageOf(error) };
        this.#log.warn("cannot write that an image has lost its tag", what);
      }
    }
  }

  /** The last pulled first: after a restart too. */
  list(): ImageRecord[] {
    return [...this.#images.values()].toSorted(lastPulledFirst);
  }

  get(id: string): ImageRecord | undefined {
    return this.#images.get(id);
  }

  /**
   * By name, tag, digest, name@digest, id, or the start of an id.
   * @throws CriError INVALID_ARGUMENT when several ids start so.
   */
  find(ref: string): ImageRecord | undefined {
    const id = /^[0-9a-f]{64}$/.test(ref) ? `sha256:${ref}` : ref;
    if (isDigest(id)) {
      return this.#images.get(id) ?? this.#first(({ repoDigests: all }) => hasDigest(all, id));
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

  /** The config as it came; undefined where it is not kept, or no longer what it was. */
  async configOf(id: string): Promise<Buffer | undefined> {
    const bytes = await readFile(this.#configPath(id)).catch(() => undefined);
    return bytes !== undefined && digestOf(bytes, id) === id ? bytes : undefined;
  }

  /** Adds an image, or names to one that is there; a tag leaves the image that had it. */
  async add(image: ImageRecord, config: Uint8Array): Promise<ImageRecord> {
    const known = this.#images.get(image.id);
    const added: ImageRecord = {
      ...image,
      repoTags: union(known?.repoTags, image.repoTags),
      repoDigests: union(known?.repoDigests, image.repoDigests),
    };
    const moved = this.list().filter(
      (other) =>
        other.id !== image.id && other.repoTags.some((tag) => added.repoTags.includes(tag)),
    );
    await writeFileAtomic(this.#configPath(image.id), config);
    await this.#write(added);
    for (const other of moved) {
      const repoTags = other.repoTags.filter((tag) => !added.repoTags.includes(tag));
      await this.#write({ ...other, repoTags });
    }
    return added;
  }

  async remove(id: string): Promise<void> {
    this.#images.delete(id);
    await rm(this.#path(id), { force: true });
    await rm(this.#configPath(id), { force: true });
  }

  #configPath(id: string): string {
    return this.#path(id).replace(/json$/, "config");
  }

  #path(id: string): string {
    return join(this.#folder, `${id.replace(/^sha256:/, "")}.json`);
  }

  async #write(image: ImageRecord): Promise<void> {
    const file = {
      version: 1,
      ...image,
      sizeBytes: String(image.sizeBytes),
      pulledAtNs: String(image.pulledAtNs),
    };
    await writeFileAtomic(this.#path(image.id), jsonText(file));
    this.#images.set(image.id, image);
  }

  async #read(path: string): Promise<void> {
    try {
      const { version, ...image } = v.parse(ImageFile, jsonValue(await readFile(path, "utf8")));
      if (path !== this.#path(image.id)) throw new Error(`version ${version} of another image`);
      this.#images.set(image.id, image);
    } catch (error) {
      const aside = `${path}.unreadable`;
      this.#log.warn("image set aside: its record cannot be read", {
        file: aside,
        error: messageOf(error),
      });
      await this.#clear(path, () => rename(path, aside));
    }
  }

  /** What an earlier daemon left half written. */
  async #discard(path: string): Promise<void> {
    await this.#clear(path, () => rm(path, { recursive: true, force: true }));
  }

  /** Nothing odd among the records stops the start. */
  async #clear(file: string, action: () => Promise<void>): Promise<void> {
    try {
      await action();
    } catch (error) {
      this.#log.warn("it stays among the images' records", { file, error: messageOf(error) });
    }
  }
}

function lastPulledFirst(a: ImageRecord, b: ImageRecord): number {
  if (a.pulledAtNs !== b.pulledAtNs) return a.pulledAtNs > b.pulledAtNs ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

function hasDigest(repoDigests: string[], digest: string): boolean {
  return repoDigests.some((name) => name.endsWith(`@${digest}`));
}

function union(known: string[] = [], more: string[]): string[] {
  return [...new Set([...known, ...more])];
}
