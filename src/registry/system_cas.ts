// The certificate authorities that this host trusts. Bun brings a list of its own, but an authority
// that somebody has added to the host's must count here as it does for every other program.
import { readFileSync, statSync } from "node:fs";
import { rootCertificates } from "node:tls";

/** Where distributions keep them, as Go looks for them (crypto/x509, root_linux.go). */
const bundles = [
  "/etc/ssl/certs/ca-certificates.crt",
  "/etc/pki/tls/certs/ca-bundle.crt",
  "/etc/ssl/ca-bundle.pem",
  "/etc/pki/tls/cacert.pem",
  "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
  "/etc/ssl/cert.pem",
];

let last: { file: string; mtimeMs: number; pem: string } | undefined;

/** PEM texts: the host's bundle ($SSL_CERT_FILE names another one), else what the runtime brings. */
export function systemAuthorities(): string[] {
  const files = process.env["SSL_CERT_FILE"] ? [process.env["SSL_CERT_FILE"]] : bundles;
  for (const file of files) {
    const mtimeMs = statSync(file, { throwIfNoEntry: false })?.mtimeMs;
    if (mtimeMs === undefined) continue;
    if (last?.file !== file || last.mtimeMs !== mtimeMs) {
      last = { file, mtimeMs, pem: readFileSync(file, "utf8") };
    }
    return [last.pem];
  }
  return [...rootCertificates];
}
