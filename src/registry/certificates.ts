// Reads certificates and keys of registries from the folders of a certs.d tree.
import { readdir } from "node:fs/promises";
import { isAbsolute, join } from "node:path";
import { createSecureContext } from "node:tls";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { readSettings } from "../base/settings_file.ts";
import type { Tls } from "./endpoint.ts";

/** by: the file or folder that refers to it, for messages. */
type PemFile = { path: string; by: string };

export type CertificateFiles = {
  authorities: string[];
  /** Client certificates; both names of one may be the same. */
  clients: [cert: string, key: string][];
};

/**
 * Returns one Tls per client certificate; without any, one.
 * @throws CriError FAILED_PRECONDITION naming the file that is missing or wrong.
 */
export function readTls(
  { folder, by }: { folder: string; by: string },
  { authorities, clients }: CertificateFiles,
): Tls[] {
  const file = (name: string) => ({ path: isAbsolute(name) ? name : join(folder, name), by });
  const ca = authorities.map((name) => readPem(file(name), "CERTIFICATE"));
  const tls: Tls = { skipVerify: false, files: authorities, ...(ca.length > 0 && { ca }) };
  if (clients.length === 0) return [checkedTls(tls, by)];
  return clients.map(([certName, keyName]) => {
    const cert = readPem(file(certName), "CERTIFICATE");
    const key = readPem(file(keyName), "PRIVATE KEY");
    return checkedTls({ ...tls, cert, key, files: [...authorities, certName] }, by);
  });
}

/** @throws CriError FAILED_PRECONDITION if it is missing or holds no part of that kind. */
function readPem({ path, by }: PemFile, what: "CERTIFICATE" | "PRIVATE KEY"): string {
  let text: string;
  try {
    text = readSettings(path, { fatal: false }); // comments may be of any encoding
  } catch (error) {
    const message = `${by} names ${path}: ${messageOf(error)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  }
  if (new RegExp(`^-----BEGIN (?:[A-Z0-9]+ )?${what}-----`, "m").test(text)) return text;
  const message = `${by} names ${path}, which holds no ${what.toLowerCase()} in PEM form`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** @throws CriError FAILED_PRECONDITION if TLS rejects them, such as a key of another certificate. */
function checkedTls(tls: Tls, by: string): Tls {
  const { ca, cert, key, files = [] } = tls;
  try {
    createSecureContext({ ca, cert, key });
    return tls;
  } catch (error) {
    const message = `${by}: ${files.join(", ")}: ${messageOf(error)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  }
}

/**
 * Reads Docker's layout: *.crt are CAs, NAME.cert is the client certificate with its key in NAME.key or in
 * the same file; the first of several in lexical order. undefined: the folder has none.
 */
export async function dockerCertificates(folder: string): Promise<Tls | undefined> {
  const names = (await namesIn(folder)).sort();
  const authorities = names.filter((name) => name.endsWith(".crt"));
  const certName = names.find((name) => name.endsWith(".cert"));
  if (authorities.length === 0 && certName === undefined) return undefined;
  const clients: CertificateFiles["clients"] = [];
  if (certName !== undefined) {
    const keyName = certName.replace(/cert$/, "key");
    clients.push([certName, names.includes(keyName) ? keyName : certName]);
  }
  return readTls({ folder, by: folder }, { authorities, clients })[0];
}

async function namesIn(folder: string): Promise<string[]> {
  return await readdir(folder).catch((error: unknown) =>
    errnoOf(error) === "ENOENT" ? [] : unreadable(error),
  );
}

/** @throws CriError FAILED_PRECONDITION: a file or folder of the configuration cannot be read. */
export function unreadable(cause: unknown): never {
  throw new CriError("FAILED_PRECONDITION", messageOf(cause), { cause });
}
