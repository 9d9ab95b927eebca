// Reads images from files: OCI layouts as folders or archives, and docker archives, compressed or not.
import type { Stats } from "node:fs";
import { open, readFile, stat } from "node:fs/promises";
import { join, posix } from "node:path";
import * as v from "valibot";
import { throwIfAborted } from "../base/abort.ts";
import { documentBounds } from "../base/json_bounds.ts";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { platformManifest } from "./platform_manifest.ts";
import { digestOf, isDigest } from "../base/digest.ts";
import { parseAs, parseDocument } from "../base/schema.ts";
import {
  assertVerifiable,
  configBytesMax,
  listOf,
  NoImage,
  parseIndex,
  type Descriptor,
} from "./manifest.ts";
import { architectureOf, hostPlatforms, isForLinux, requiredFeatures } from "./platform.ts";
import type { LayerDescriptor } from "../layer/processor_choice.ts";
import { isTag, nameOrNone } from "../registry/reference.ts";
import { type TarHeader, TarReader } from "../layer/tar_reader.ts";
import { isZstd } from "../layer/zstd_frames.ts";

type ArchiveLayer = LayerDescriptor & Place;

export type ArchiveImage = {
  names: string[];
  /** Bare tags of an OCI layout; their repository is known only to the caller. */
  tags: string[];
  /** Names in the archive that are no names of images. */
  invalidNames: string[];
  /** "" for a docker archive. */
  manifestDigest: string;
  configDigest: string;
  config: Buffer;
  layers: ArchiveLayer[];
};

type ArchiveOptions = {
  /** An existing folder for a decompressed copy of the archive. */
  scratch: string;
  /** Decompresses a file into a new one. */
  inflate: (path: string, target: string) => Promise<void>;
  signal: AbortSignal;
};

type Place = { path: string; offset: number; size: number };
/** Finds a file of the archive by its name. */
type Lookup = (name: string) => Promise<Place | undefined>;

const DockerManifest = v.array(
  v.object({
    Config: v.string(),
    RepoTags: v.nullish(v.array(v.string())),
    Layers: listOf(v.string()),
  }),
);

/** @throws CriError NOT_FOUND without the file, INVALID_ARGUMENT if it is no image archive. */
export async function readArchive(path: string, o: ArchiveOptions): Promise<ArchiveImage[]> {
  const lookup = await lookupIn(path, o);
  const index = await lookup("index.json");
  if (index !== undefined) return await readOci(path, index, lookup);
  const manifest = await lookup("manifest.json");
  if (manifest !== undefined) return await readDocker(path, manifest, lookup);
  const message = `${path} is no image archive: it holds neither index.json (OCI) nor manifest.json (docker save)`;
  throw new CriError("INVALID_ARGUMENT", message);
}

async function lookupIn(path: string, o: ArchiveOptions): Promise<Lookup> {
  let found: Stats;
  try {
    found = await stat(path);
  } catch (error) {
    const isAbsent = errnoOf(error) === "ENOENT";
    const code = isAbsent ? "NOT_FOUND" : "INVALID_ARGUMENT";
    const reason = isAbsent ? "no such file" : (errnoOf(error) ?? messageOf(error));
    const message = `cannot read ${path} on the daemon's host: ${reason}`;
    throw new CriError(code, message, { cause: error });
  }
  if (found.isDirectory()) {
    return async (name) => {
      const file = join(path, posix.normalize(`/${name}`));
      const found = await stat(file).catch(() => undefined);
      return found?.isFile() ? { path: file, offset: 0, size: found.size } : undefined;
    };
  }
  // Opening a FIFO would block until it has a writer.
  if (!found.isFile())
    throw new CriError("INVALID_ARGUMENT", `${path} is neither a file nor a folder`);
  const plain = (await isCompressed(path)) ? join(o.scratch, "archive.tar") : path;
  if (plain !== path) await o.inflate(path, plain);
  try {
    const entries = await indexTar(plain, o.signal);
    return async (name) => entries.get(keyOf(name));
  } catch (error) {
    const message = messageOf(error);
    if (!(error instanceof CriError) || message.includes(path)) throw error;
    throw new CriError(error.code, `${path} is no image archive: ${message}`, { cause: error });
  }
}

/** Returns the one form of a name by which an archive's files are known, such as a/b of ./a/b. */
function keyOf(name: string): string {
  return posix.normalize(`/${name}`).slice(1);
}

async function isCompressed(path: string): Promise<boolean> {
  await using file = await open(path);
  const { buffer } = await file.read(Buffer.alloc(4), 0, 4, 0);
  return buffer.readUInt16LE(0) === 0x8b1f || isZstd(buffer.readUInt32LE(0));
}

/** Bounds of one archive, which holds little besides blobs. */
const entriesMax = 100_000;
const nameBytesMax = 16 << 20;
/** For the configs of all its images together. */
const configsBytesMax = 16 << 20;

/** Indexes the files of a tar by name, skipping their content. */
async function indexTar(path: string, signal: AbortSignal): Promise<Map<string, Place>> {
  const places = new Map<string, Place>();
  const links = new Map<string, string[]>();
  let nameBytes = 0;
  const handler = {
    entry: ({ name, type, link, offset, size }: TarHeader) => {
      nameBytes += name.length + link.length;
      if (nameBytes > nameBytesMax) {
        const message = `${path} is no image archive: the names in it take over ${nameBytesMax} bytes`;
        throw new CriError("RESOURCE_EXHAUSTED", message);
      }
      const at = keyOf(name);
      if (type === "0") places.set(at, { path, offset, size });
      if (type === "1") links.set(at, [keyOf(link)]);
      if (type === "2") links.set(at, targetsOf(at, link));
    },
    data: () => {},
    entryEnd: () => {},
  };
  const reader = new TarReader(handler, { entriesMax });
  await using file = await open(path);
  const { size } = await file.stat();
  const buffer = Buffer.alloc(64 << 10);
  let at = 0;
  while (at < size) {
    throwIfAborted(`reading ${path}`, signal);
    const { bytesRead } = await file.read(buffer, 0, buffer.length, at);
    if (bytesRead === 0) break; // it has become shorter
    reader.push(buffer.subarray(0, bytesRead));
    at += bytesRead + reader.skip();
  }
  reader.end();
  if (at !== size) throw new CriError("DATA_LOSS", `${path} is truncated: copy or save it again`);
  for (const [name, targets] of links) {
    const place = linkedPlace(targets, places, links);
    if (place !== undefined) places.set(name, place);
  }
  return places;
}

/** Old docker versions save a layer once and link to it; other programs count from the archive's root. */
function targetsOf(at: string, link: string): string[] {
  const beside = keyOf(link.startsWith("/") ? link : posix.join(posix.dirname(at), link));
  return [beside, keyOf(link), posix.basename(link)];
}

/** As the kernel's limit for one path. */
const linksMax = 40;

function linkedPlace(
  targets: string[],
  places: ReadonlyMap<string, Place>,
  links: ReadonlyMap<string, string[]>,
): Place | undefined {
  let next: string[] | undefined = targets;
  for (let count = 0; next !== undefined && count < linksMax; count++) {
    const found = next.find((name) => places.has(name));
    if (found !== undefined) return places.get(found);
    const link: string | undefined = next.find((name) => links.has(name));
    next = link === undefined ? undefined : links.get(link);
  }
  return undefined;
}

async function readPlace(place: Place, bytesMax: number, what: string): Promise<Buffer> {
  if (place.size > bytesMax) {
    throw new CriError("INVALID_ARGUMENT", `${what} is longer than ${bytesMax} bytes`);
  }
  if (place.offset === 0) return await readFile(place.path);
  await using file = await open(place.path);
  const buffer = Buffer.alloc(place.size);
  const { bytesRead } = await file.read(buffer, 0, place.size, place.offset);
  if (bytesRead < place.size) throw new CriError("DATA_LOSS", `${what} is truncated`);
  return buffer;
}

// -- OCI layout -----------------------------------------------------------------------------------

async function readOci(path: string, index: Place, lookup: Lookup): Promise<ArchiveImage[]> {
  const what = `${path}: index.json`;
  const { manifests } = await parseIndex(
    await readPlace(index, documentBounds.bytesMax, what),
    what,
  );
  const images = new Map<string, ArchiveImage>();
  let notAnImage: NoImage | undefined;
  const platforms = hostPlatforms();
  const usable = manifests.filter(({ platform }) => isUsable(platform));
  const stated = new Set(usable.map(({ platform }) => architectureOf(platform)));
  const best = platforms.find(({ architecture }) => stated.has(architecture))?.architecture;
  for (const entry of usable) {
    // An archive of several platforms need not hold all of them.
    if (!["", best].includes(architectureOf(entry.platform))) continue;
    try {
      const image = images.get(entry.digest) ?? (await ociImage(path, entry, lookup));
      addNames(image, entry);
      images.set(entry.digest, image);
      assertConfigs(path, images.values());
    } catch (error) {
      // Signatures and the like are listed next to the image they are for.
      if (!(error instanceof NoImage)) throw error;
      notAnImage ??= error;
    }
  }
  if (images.size > 0) return [...images.values()];
  if (notAnImage !== undefined) throw notAnImage;
  const { architecture } = platforms[0]!;
  const features = manifests.flatMap(({ platform }) => requiredFeatures(platform));
  const needs = features.length === 0 ? "" : ` without the OS feature ${features[0]}`;
  throw new CriError("NOT_FOUND", `${path} holds no image for linux/${architecture}${needs}`);
}

function isUsable(platform: Descriptor["platform"]): boolean {
  return isForLinux(platform) && requiredFeatures(platform).length === 0;
}

function addNames(image: ArchiveImage, { annotations }: Descriptor): void {
  const full = annotations?.["io.containerd.image.name"];
  if (full !== undefined) return addName(image, full);
  const name = annotations?.["org.opencontainers.image.ref.name"] ?? "";
  if (isTag(name)) image.tags.push(name);
  else if (nameOrNone(name) !== undefined) addName(image, name); // any other name has a private meaning
}

/** One invalid name does not keep the others, and the other images, from being loaded. */
function addName({ names, invalidNames }: ArchiveImage, name: string): void {
  // containerd's CRI has each image under its id, too, and docker save has a name for what has none.
  if (isDigest(name) || name === "<none>:<none>") return;
  (nameOrNone(name) === undefined ? invalidNames : names).push(name);
}

async function ociImage(path: string, entry: Descriptor, lookup: Lookup) {
  assertVerifiable(entry, path);
  const blob = async (digest: string, bytesMax: number) => {
    const place = await lookup(blobName(digest));
    if (place === undefined) throw new CriError("NOT_FOUND", `${path} has no blob ${digest}`);
    const bytes = await readPlace(place, bytesMax, `${path}: blob ${digest}`);
    if (digestOf(bytes, digest) === digest) return bytes;
    throw new CriError("DATA_LOSS", `${path}: the blob ${digest} is damaged`);
  };
  const top = await blob(entry.digest, documentBounds.bytesMax);
  const { config, layers } = await platformManifest(top, `${path}: ${entry.digest}`, {
    manifest: (digest) => blob(digest, documentBounds.bytesMax),
    config: ({ digest }) => blob(digest, configBytesMax),
  });
  const image: ArchiveImage = {
    names: [],
    tags: [],
    invalidNames: [],
    manifestDigest: entry.digest,
    configDigest: config.digest,
    config: await blob(config.digest, configBytesMax),
    layers: [],
  };
  for (const layer of layers) {
    const place = await lookup(blobName(layer.digest));
    if (place === undefined)
      throw new CriError("NOT_FOUND", `${path} has no layer ${layer.digest}`);
    image.layers.push({ ...layer, ...place });
  }
  return image;
}

/** Returns the path of a blob in an OCI layout. */
export function blobName(digest: string): string {
  return `blobs/${digest.replace(":", "/")}`;
}

// -- docker save ----------------------------------------------------------------------------------

async function readDocker(path: string, manifest: Place, lookup: Lookup): Promise<ArchiveImage[]> {
  const what = `${path}: manifest.json`;
  const bytes = await readPlace(manifest, documentBounds.bytesMax, what);
  const value = await parseDocument(bytes, what);
  if (typeof value === "object" && value !== null && "schemaVersion" in value) {
    const message = `${path} is in skopeo's form "dir:", which cannot be loaded: convert it with skopeo copy dir:${path} oci-archive:FILE`;
    throw new CriError("INVALID_ARGUMENT", message);
  }
  const entries = parseAs(DockerManifest, value, what);
  const images: ArchiveImage[] = [];
  for (const { Config, RepoTags, Layers } of entries) {
    const find = async (name: string) => {
      const place = await lookup(name);
      if (place !== undefined) return place;
      throw new CriError("NOT_FOUND", `${path} has no ${name}, which its manifest.json names`);
    };
    const config = await readPlace(await find(Config), configBytesMax, `${path}: ${Config}`);
    const layers: ArchiveLayer[] = [];
    for (const name of Layers) layers.push({ ...(await find(name)), digest: "", mediaType: "" });
    const own = { manifestDigest: "", configDigest: digestOf(config), config, layers };
    const image: ArchiveImage = { names: [], tags: [], invalidNames: [], ...own };
    for (const name of RepoTags ?? []) addName(image, name);
    images.push(image);
    assertConfigs(path, images);
  }
  return images;
}

/** Bounded in sum: any number of manifests may share one config. */
function assertConfigs(path: string, images: Iterable<ArchiveImage>): void {
  const bytes = [...images].reduce((sum, { config }) => sum + config.length, 0);
  if (bytes <= configsBytesMax) return;
  const message = `${path}: the configs of its images take over ${configsBytesMax} bytes: save fewer images in one archive`;
  throw new CriError("RESOURCE_EXHAUSTED", message);
}
