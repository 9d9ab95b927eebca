// One place to ask for images, as hosts.toml or daemon.json describe it.
import { URL } from "node:url";
import { CriError } from "../base/errors.ts";

/** Plain data: it travels to the helper that fetches layers. */
export type Endpoint = {
  /** What goes before /REPOSITORY/manifests/…; ends in /v2 as a rule, never in a slash. */
  url: string;
  /** The registry itself, which credentials for it may be shown to. */
  isOrigin: boolean;
  /** Whether manifests by digest, and blobs, may be asked for. */
  canPull: boolean;
  /** Whether it may say which image a tag means now. */
  canResolve: boolean;
  /** Names in small letters. */
  headers: Record<string, string>;
  tls: Tls;
  /** For a connection to come about; without it only silence counts. */
  dialTimeoutMs?: number;
  /** Where it is configured, for a person to read. */
  from: string;
};

/** PEM texts, not paths: the helper reads them where the files are out of reach. */
export type Tls = {
  /** Beside the system's authorities. */
  ca?: string[];
  cert?: string;
  key?: string;
  skipVerify: boolean;
  /** The names of the files that these are from, for a person to read. */
  files?: string[];
};

/** @throws CriError FAILED_PRECONDITION; where: what names the address. */
export function registryUrl(text: string, where: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url !== undefined && /^https?:$/.test(url.protocol)) return url;
  const shown = text.replace(/\/\/[^/]*@/, "//…@"); // what stands before @ may be a password
  throw new CriError("FAILED_PRECONDITION", `${where}: ${shown} is not an http or https address`);
}
