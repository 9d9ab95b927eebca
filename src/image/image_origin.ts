// Describes where an image was pulled from, with the manifests that lead to it: what a registry mirror needs
// to serve it to other nodes. Kept in images/ID.origins.
import * as v from "valibot";
import { trustedJsonValue } from "../base/json.ts";
import { checked, mapOf } from "../base/schema.ts";

const ImageOrigin = v.object({
  /** "registry.example/team/app" */
  repository: v.string(),
  /** Those that stood for the digest when they were pulled last. */
  tags: v.array(v.string()),
  /** Of the index or manifest that was pulled. */
  digest: v.string(),
  /** No pull was without credentials. */
  isPrivate: v.boolean(),
  /** Base64 by digest: the index, if there is one, and the manifest of this platform. */
  manifests: mapOf(v.string(), v.string()),
});
export type ImageOrigin = v.InferOutput<typeof ImageOrigin>;

const OriginsFile = v.object({ version: v.literal(1), origins: v.array(ImageOrigin) });

/** An image without changes may be built, and pulled, under a new index again and again. */
const originsMax = 16;
/** Bounds the manifests of all origins but the latest, since a mirror reads the whole file at once. */
const manifestBytesMax = 8 << 20;

/** @throws Error naming the invalid field. */
export function parseOrigins(text: string): ImageOrigin[] {
  return checked(OriginsFile, trustedJsonValue(text)).origins;
}

/** Adds the origin of the latest pull, to which its tags move. */
export function addOrigin(known: readonly ImageOrigin[], latest: ImageOrigin): ImageOrigin[] {
  const { repository, digest, isPrivate } = latest;
  const isSame = (one: ImageOrigin) => one.repository === repository && one.digest === digest;
  const same = known.find(isSame);
  const added = {
    ...latest,
    tags: [...new Set([...(same?.tags ?? []), ...latest.tags])],
    isPrivate: isPrivate && (same?.isPrivate ?? true),
  };
  const others = known
    .filter((one) => !isSame(one))
    .map((one) => {
      if (one.repository !== repository) return one;
      return { ...one, tags: one.tags.filter((tag) => !latest.tags.includes(tag)) };
    });
  let bytes = 0;
  const kept = [added, ...others].slice(0, originsMax).filter(({ manifests }) => {
    bytes += Object.values(manifests).reduce((sum, text) => sum + text.length, 0);
    return bytes <= manifestBytesMax;
  });
  return kept[0] === added ? kept : [added];
}
