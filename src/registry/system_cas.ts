// Reads the system CAs. Bun bundles a list of its own, but a CA added to the host must be trusted here as
// by every other program.
import { readFileSync, statSync } from "node:fs";

/** The paths of distributions, in the order of Go (crypto/x509, root_linux.go). */
const bundles = [
  "/etc/ssl/certs/ca-certificates.crt",
  "/etc/pki/tls/certs/ca-bundle.crt",
  "/etc/ssl/ca-bundle.pem",
  "/etc/pki/tls/cacert.pem",
  "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
  "/etc/ssl/cert.pem",
];

let cached: { file: string; mtimeMs: number; pem: string } | undefined;

/** Returns PEM texts: the host's bundle ($SSL_CERT_FILE overrides its path), else Bun's list. */
export async function systemCas(): Promise<string[]> {
  const files = process.env["SSL_CERT_FILE"] ? [process.env["SSL_CERT_FILE"]] : bundles;
  for (const file of files) {
    const mtimeMs = statSync(file, { throwIfNoEntry: false })?.mtimeMs;
    if (mtimeMs === undefined) continue;
    if (cached?.file !== file || cached.mtimeMs !== mtimeMs) {
      cached = { file, mtimeMs, pem: readFileSync(file, "utf8") };
    }
    return [cached.pem];
  }
  return [...(await import("node:tls")).rootCertificates]; // rarely needed, and slow to load in a helper
}
