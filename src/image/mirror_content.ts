// Finds what a registry mirror may serve: manifests, configs and layers of pulled images, by repository.
// Decision: content is found through the manifests of its repository only, never by its digest alone. So an
// image that may not be served hides its layers, even where they are asked for in another repository.
import { CriError } from "../base/errors.ts";
import { digestOf, isDigest } from "../base/digest.ts";
import type { LayerStore } from "../layer/layer_store.ts";
import type { ImageOrigin } from "./image_origin.ts";
import { manifestTypeOf, parseManifest } from "./manifest.ts";
import { patternTest } from "./pinned.ts";
import type { ImageRecord, ImageRecords } from "./records.ts";

export type MirrorRules = {
  /** Patterns of repositories. */
  readonly repositories: readonly string[];
  /** Serves images that were pulled with credentials, too. */
  readonly allowsPrivate: boolean;
};

export type MirrorParts = {
  records: Pick<ImageRecords, "list" | "configOf" | "originsOf">;
  layers: Pick<LayerStore, "blobPath">;
};

/** A file's content is not verified yet. */
export type MirrorContent = { mediaType: string; digest: string } & (
  | { bytes: Buffer }
  | { path: string }
);

type Candidate = { image: ImageRecord; origin: ImageOrigin };

/** repository: with its registry; name: a tag or a digest. @throws CriError NOT_FOUND. */
export async function mirroredManifest(
  { parts, rules }: { parts: MirrorParts; rules: MirrorRules },
  repository: string,
  name: string,
): Promise<MirrorContent> {
  const candidates = await candidatesIn(repository, parts, rules);
  for (const { image, origin } of candidates) {
    const isTagged = origin.tags.includes(name) && image.repoTags.includes(`${repository}:${name}`);
    const digest = isTagged ? origin.digest : name;
    const bytes = manifestIn(origin, digest);
    if (bytes === undefined) continue;
    return { mediaType: await manifestTypeOf(bytes, digest), digest, bytes };
  }
  throw absent(`manifest ${name}`, repository);
}

/** As for mirroredManifest(); digest: of a config or layer. */
export async function mirroredBlob(
  { parts, rules }: { parts: MirrorParts; rules: MirrorRules },
  repository: string,
  digest: string,
): Promise<MirrorContent> {
  const found = { mediaType: "application/octet-stream", digest };
  for (const { image, origin } of await candidatesIn(repository, parts, rules)) {
    if (image.id === digest) {
      const bytes = await parts.records.configOf(digest);
      if (bytes !== undefined) return { ...found, bytes };
    }
    if (!(await layersOf(origin)).includes(digest)) continue;
    const path = parts.layers.blobPath(digest);
    if (path !== undefined) return { ...found, path };
  }
  throw absent(`blob ${digest}`, repository);
}

async function candidatesIn(
  repository: string,
  { records }: MirrorParts,
  { repositories, allowsPrivate }: MirrorRules,
): Promise<Candidate[]> {
  if (!repositories.some((pattern) => patternTest(pattern)(repository))) return [];
  const images = records
    .list()
    .filter(({ repoDigests }) => repoDigests.some((name) => name.startsWith(`${repository}@`)));
  const found = await Promise.all(
    images.map(async (image) => {
      const origins = await records.originsOf(image.id);
      return origins.map((origin) => ({ image, origin }));
    }),
  );
  return found
    .flat()
    .filter(({ origin }) => origin.repository === repository)
    .filter(({ origin }) => allowsPrivate || !origin.isPrivate);
}

/** Returns the manifest if it is undamaged. */
function manifestIn({ manifests }: ImageOrigin, digest: string): Buffer | undefined {
  const text = Object.hasOwn(manifests, digest) ? manifests[digest] : undefined;
  if (text === undefined || !isDigest(digest)) return undefined;
  const bytes = Buffer.from(text, "base64");
  return digestOf(bytes, digest) === digest ? bytes : undefined;
}

/** Origins are read once, and so are their manifests. */
const layersByOrigin = new WeakMap<ImageOrigin, string[]>();

async function layersOf(origin: ImageOrigin): Promise<string[]> {
  const known = layersByOrigin.get(origin);
  if (known !== undefined) return known;
  const layers: string[] = [];
  for (const digest of Object.keys(origin.manifests)) {
    const bytes = manifestIn(origin, digest);
    const parsed = bytes === undefined ? undefined : await parseManifest(bytes, digest);
    if (parsed?.kind === "image") layers.push(...parsed.manifest.layers.map((one) => one.digest));
  }
  layersByOrigin.set(origin, layers);
  return layers;
}

/** The same for content that is absent and for what may not be served: a client learns nothing. */
function absent(what: string, repository: string): CriError {
  return new CriError("NOT_FOUND", `this node serves no ${what} of ${repository}`);
}
