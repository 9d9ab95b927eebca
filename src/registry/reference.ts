// Parses image references into the full form that records store.
import { URL } from "node:url";
import { isDigest } from "../base/digest.ts";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";

export type Reference = {
  /** Registry host, with its port if any. */
  domain: string;
  /** Repository at that registry. */
  path: string;
  tag?: string;
  digest?: string;
  /** Full form: domain/path:tag, or domain/path@digest when a digest is given. */
  name: string;
};

const component = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$/;
const domainName =
  /^(?:\[[0-9a-fA-F:]+\]|[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*)(?::[0-9]{1,5})?$/;
const tagName = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/;
const lengthMax = 255;

/** @throws CriError INVALID_ARGUMENT with the part that is wrong. */
export function parseReference(text: string): Reference {
  const fail = (what: string) =>
    new CriError("INVALID_ARGUMENT", `invalid image reference ${quoted(text)}: ${what}`);
  if (text === "") throw fail("it is empty");
  const { rest, tag, digest } = splitSuffixes(text);
  if (digest !== undefined && !isDigest(digest)) {
    throw fail("expected a digest after @: sha256: and 64 hex digits");
  }
  if (tag !== undefined && !tagName.test(tag)) {
    throw fail(`the tag ${quoted(tag)} has a character that tags must not have`);
  }
  const { domain, path } = splitDomain(rest);
  if (!isHost(domain)) throw fail(`${quoted(domain)} is not a host name`);
  if (rest.length > lengthMax) throw fail(`the name is longer than ${lengthMax} characters`);
  if (/^[0-9a-f]{64}$/.test(rest)) throw fail("64 hex digits are an image id, not a name");
  for (const part of path.split("/")) {
    if (component.test(part)) continue;
    const hint = part.toLowerCase() !== part ? "; names are lower case" : "";
    throw fail(`${quoted(part)} is not a valid part of a name${hint}`);
  }
  const repository = `${domain}/${path}`;
  if (digest !== undefined) return { domain, path, tag, digest, name: `${repository}@${digest}` };
  return { domain, path, tag: tag ?? "latest", name: `${repository}:${tag ?? "latest"}` };
}

function splitSuffixes(text: string): { rest: string; tag?: string; digest?: string } {
  const at = text.indexOf("@");
  const digest = at < 0 ? undefined : text.slice(at + 1);
  const named = at < 0 ? text : text.slice(0, at);
  const colon = named.lastIndexOf(":");
  // A colon before a slash begins a port.
  if (colon < 0 || named.indexOf("/", colon) >= 0) return { rest: named, digest };
  return { rest: named.slice(0, colon), tag: named.slice(colon + 1), digest };
}

/** The first part is a host if it has a dot, a port or upper case, or is localhost. */
function splitDomain(rest: string): { domain: string; path: string } {
  const slash = rest.indexOf("/");
  const first = rest.slice(0, Math.max(slash, 0));
  const isDomain = slash >= 0 && (/[.:A-Z]/.test(first) || first === "localhost");
  const domain = isDomain ? first : "docker.io";
  let path = isDomain ? rest.slice(slash + 1) : rest;
  if (domain !== "docker.io" && domain !== "index.docker.io") return { domain, path };
  if (!path.includes("/")) path = `library/${path}`;
  return { domain: "docker.io", path };
}

export function isTag(text: string): boolean {
  return tagName.test(text);
}

/** Returns the full form of a name; undefined for an invalid name. */
export function nameOrNone(text: string): string | undefined {
  try {
    return parseReference(text).name;
  } catch {
    return undefined;
  }
}

/** Completes a name or a pattern of names with its registry: "busybox" is docker.io/library/busybox. */
export function fullName(text: string): string {
  const { domain, path } = splitDomain(text);
  return `${domain}/${path}`;
}

/**
 * True for a host that URL parsing leaves unchanged. 0x7f.1 is another spelling of 127.0.0.1, and would bypass the
 * configuration of that address.
 */
function isHost(domain: string): boolean {
  if (!domainName.test(domain) || !URL.canParse(`http://${domain}/`)) return false;
  const { hostname } = new URL(`http://${domain}/`);
  return hostname.startsWith("[") || hostname === domain.replace(/:\d+$/, "").toLowerCase();
}
