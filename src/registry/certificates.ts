// Certificates and keys of registries, from the folders of a certs.d tree.
import { readdir, readFile } from "node:fs/promises";
import { isAbsolute, join } from "node:path";
import { createSecureContext } from "node:tls";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { Tls } from "./endpoint.ts";

/** A file of PEM texts, and who names it. */
type Named = { path: string; by: string };

export function named(folder: string, name: string, by: string): Named {
  return { path: isAbsolute(name) ? name : join(folder, name), by };
}

/** @throws CriError FAILED_PRECONDITION when one is missing or has no certificate. */
export async function readAuthority(file: Named): Promise<string> {
  return await readPem(file, "CERTIFICATE");
}

/** Both may stand in one file. @throws CriError FAILED_PRECONDITION when one lacks its part. */
export async function readPair(
  certFile: Named,
  keyFile: Named,
): Promise<{ cert: string; key: string }> {
  const cert = await readPem(certFile, "CERTIFICATE");
  const key = await readPem(keyFile, "PRIVATE KEY");
  return { cert, key };
}

async function readPem({ path, by }: Named, what: string): Promise<string> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    const message = `${by} names ${path}: ${messageOf(error)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  }
  if (new RegExp(`^-----BEGIN (?:[A-Z0-9]+ )?${what}-----`, "m").test(text)) return text;
  const message = `${by} names ${path}, which holds no ${what.toLowerCase()} in PEM form`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** @throws CriError FAILED_PRECONDITION when TLS cannot be done with them, as a key of another one. */
export function usable(tls: Tls, by: string): Tls {
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
 * Docker's layout: *.crt are authorities, NAME.cert is the client's with the key in NAME.key or in
 * itself; of several the first in lexical order. undefined: the folder has none.
 */
export async function dockerCertificates(folder: string): Promise<Tls | undefined> {
  const names = (await namesIn(folder)).sort();
  const authorities = names.filter((name) => name.endsWith(".crt"));
  const certName = names.find((name) => name.endsWith(".cert"));
  if (authorities.length === 0 && certName === undefined) return undefined;
  const tls: Tls = { skipVerify: false, files: authorities };
  const file = (name: string) => named(folder, name, folder);
  if (authorities.length > 0) {
    tls.ca = await Promise.all(authorities.map((name) => readAuthority(file(name))));
  }
  if (certName === undefined) return usable(tls, folder);
  const ownKey = certName.replace(/cert$/, "key");
  const keyName = names.includes(ownKey) ? ownKey : certName;
  const pair = await readPair(file(certName), file(keyName));
  return usable({ ...tls, ...pair, files: [...authorities, certName] }, folder);
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return [];
    throw new CriError("FAILED_PRECONDITION", messageOf(error), { cause: error });
  }
}
