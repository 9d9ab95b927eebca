// Prepares the images of an archive for registration: names them and points to their layers.
import { CriError } from "../base/errors.ts";
import type { ArchiveImage } from "./archive.ts";
import type { NewImage } from "./pull.ts";
import { parseReference } from "../registry/reference.ts";

/**
 * Returns the images to register. given: a name for the only image that has none, or else for the only image, in
 * addition to its own names. A given name without a tag is also the repository of bare tags.
 * @throws CriError INVALID_ARGUMENT for an invalid name, and if several images would get the given one.
 */
export function imagesOfArchive(
  images: ArchiveImage[],
  path: string,
  given: string | undefined,
): NewImage[] {
  if (given === undefined) return images.map((image) => newImage(image, image.names, path));
  const { domain, path: repository } = parseReference(given);
  const hasTag = /[:@]/.test(given.slice(given.lastIndexOf("/") + 1));
  const completed = images.map(({ names, tags }) =>
    hasTag ? names : [...names, ...tags.map((tag) => `${domain}/${repository}:${tag}`)],
  );
  const taker = takerOf(images, path, given, hasTag);
  return images.map((image, i) =>
    newImage(image, image === taker ? [...completed[i]!, given] : completed[i]!, path),
  );
}

/** Returns the image that gets the given name; undefined if the name completes bare tags and no image lacks one. */
function takerOf(images: ArchiveImage[], path: string, given: string, hasTag: boolean) {
  const nameless = images.filter(({ names, tags }) => names.length + tags.length === 0);
  if (nameless.length === 0 && !hasTag && images.some(({ tags }) => tags.length > 0)) return;
  const takers = nameless.length > 0 ? nameless : images;
  if (takers.length === 1) return takers[0];
  const kind = nameless.length > 0 ? " without a name" : "";
  const message = `${path} holds ${takers.length} images${kind}, and only one can be ${given}: load them without --name`;
  throw new CriError("INVALID_ARGUMENT", message);
}

function newImage(image: ArchiveImage, names: string[], path: string): NewImage {
  const repoTags = new Set<string>();
  const repoDigests = new Set<string>();
  for (const name of names) {
    const reference = parseReference(name);
    if (reference.digest === undefined) repoTags.add(reference.name);
    const repository = `${reference.domain}/${reference.path}`;
    if (image.manifestDigest !== "") repoDigests.add(`${repository}@${image.manifestDigest}`);
  }
  return {
    id: image.configDigest,
    config: image.config,
    repoTags: [...repoTags],
    repoDigests: [...repoDigests],
    layers: image.layers.map(({ path: file, offset, ...layer }) => ({
      ...layer,
      source: { kind: "file", path: file, offset },
    })),
    source: { kind: "file", path },
    what: path,
  };
}
