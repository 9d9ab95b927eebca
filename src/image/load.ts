// Prepares the images of an archive for registration: names them and points to their layers.
import { CriError } from "../base/errors.ts";
import type { ArchiveImage } from "./archive.ts";
import type { NewImage } from "./pull.ts";
import { parseReference } from "../registry/reference.ts";

/**
 * given: the name of an image without one, or the repository of bare tags.
 * @throws CriError INVALID_ARGUMENT for an invalid name, and if several images would get the given one.
 */
export function imagesOfArchive(
  images: ArchiveImage[],
  path: string,
  given: string | undefined,
): NewImage[] {
  const nameless = images.filter(({ names, tags }) => names.length + tags.length === 0).length;
  if (given !== undefined && nameless > 1) {
    const message = `${path} holds ${nameless} images without a name, and only one can be ${given}: load them without --name and use their ids`;
    throw new CriError("INVALID_ARGUMENT", message);
  }
  return images.map((image) => newImage(image, path, given));
}

function newImage(image: ArchiveImage, path: string, given: string | undefined): NewImage {
  const repoTags = new Set<string>();
  const repoDigests = new Set<string>();
  for (const name of namesOf(image, given)) {
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

function namesOf({ names, tags }: ArchiveImage, given: string | undefined): string[] {
  if (given === undefined) return names;
  if (names.length + tags.length === 0) return [given];
  const { domain, path } = parseReference(given);
  return [...names, ...tags.map((tag) => `${domain}/${path}:${tag}`)];
}
