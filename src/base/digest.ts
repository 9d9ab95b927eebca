// Computes and checks content digests (OCI image-spec, descriptor.md).
import { createHash } from "node:crypto";

/** The two digest algorithms of the OCI image specification, spelt canonically. */
export function isDigest(text: string): boolean {
  return /^sha256:[0-9a-f]{64}$/.test(text) || /^sha512:[0-9a-f]{128}$/.test(text);
}

/** The digest of the bytes, by the algorithm of `like`. */
export function digestOf(bytes: Uint8Array, like = "sha256:"): string {
  const algorithm = algorithmOf(like);
  return `${algorithm}:${createHash(algorithm).update(bytes).digest("hex")}`;
}

/** sha256 unless the digest names sha512. */
export function algorithmOf(digest: string): "sha256" | "sha512" {
  return digest.startsWith("sha512:") ? "sha512" : "sha256";
}
