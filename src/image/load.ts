// What of an archive's image the store needs to make it one of the node's.
import type { ArchiveImage } from "./archive.ts";
import type { NewImage } from "./pull.ts";
import { parseReference } from "./reference.ts";

/** given: the name for an image that brings none, or the repository of a bare tag. */
export function imageOfArchive(
  image: ArchiveImage,
  path: string,
  given: string | undefined,
): NewImage {
  const repoTags = new Set<string>();
  const repoDigests = new Set<string>();
  const names = image.names.length === 0 && given !== undefined ? [given] : image.names;
  for (const name of names) {
    // An OCI layout may name only the tag; which repository it is of, only the caller knows.
    const isTag = !/[/:]/.test(name) && given !== undefined;
    const reference = parseReference(isTag ? `${repositoryOf(given)}:${name}` : name);
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

function repositoryOf(name: string): string {
  const { domain, path } = parseReference(name);
  return `${domain}/${path}`;
}
