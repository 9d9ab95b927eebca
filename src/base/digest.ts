// Computes and checks content digests (OCI image-spec, descriptor.md).
import { createHash } from "node:crypto";

/** True for a canonical digest of one of the OCI image specification's two algorithms. */
export function isDigest(text: string): boolean {
  return /^sha256:[0-9a-f]{64}$/.test(text) || /^sha512:[0-9a-f]{128}$/.test(text);
}

/** Computes the digest of the bytes with the algorithm of `like`. */
export function digestOf(bytes: Uint8Array, like = "sha256:"): string {
  const algorithm = algorithmOf(like);
  return `${algorithm}:${createHash(algorithm).update(bytes).digest("hex")}`;
}

/** Returns the algorithm of a digest; sha256 by default. */
export function algorithmOf(digest: string): "sha256" | "sha512" {
  return digest.startsWith("sha512:") ? "sha512" : "sha256";
}
