// What a pull of an image would ask, in its order, and how each of those places answers. Nothing is
// kept of the answers.
import { URL } from "node:url";
import { throwIfAborted } from "../base/abort.ts";
import { codeOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import type { Choice, RegistryAuth } from "../registry/credentials.ts";
import type { Endpoint } from "../registry/endpoint.ts";
import type { RegistryOptions } from "../registry/hosts.ts";
import { configBytesMax } from "./manifest.ts";
import { proxyFor } from "../registry/proxy.ts";
import { imageManifest } from "./pull.ts";
import type { Reference } from "../registry/reference.ts";
import { fetchBlob, fetchManifest } from "../registry/distribution.ts";
import { openSession, withEndpoints, type Session } from "../registry/pull_session.ts";

/** Words for a person to read; no secret is among them. */
export type EndpointCheck = {
  url: string;
  /** "registry" or "mirror". */
  role: string;
  /** What names it. */
  from: string;
  capabilities: string[];
  proxy: string;
  tls: string;
  credentials: string;
  /** How it let us in; "" where nothing was asked for. */
  authorization: string;
  /** OK; a failure's code; "" where nothing could be asked. */
  code: ErrorCode | "OK" | "";
  detail: string;
  elapsedMs: number;
};

export type CheckOptions = {
  registry: RegistryOptions;
  auth: RegistryAuth | undefined;
  signal: AbortSignal;
};

/** For one endpoint: silence ends earlier, but many small answers may take their time. */
const endpointMs = 60_000;

/** @throws CriError FAILED_PRECONDITION where a file is wrong, CANCELLED, DEADLINE_EXCEEDED. */
export async function* checkRegistry(
  ref: Reference,
  options: CheckOptions,
): AsyncGenerator<EndpointCheck, void, undefined> {
  const session = await openSession(ref, options.registry, options);
  /** What the tag means, for those that may only be asked for digests. */
  let digest = ref.digest;
  for (const [index, endpoint] of session.endpoints.entries()) {
    throwIfAborted(ref.name, options.signal);
    const wanted = digest === undefined ? { tag: ref.tag } : { digest };
    const own = { ...withEndpoints(session, (_, i) => i === index), roundsMax: 1 };
    const begin = performance.now();
    const outcome = await tried(own, endpoint, { ref, wanted, signal: options.signal });
    digest ??= outcome.digest;
    yield {
      ...described(endpoint, session.choices[index]!),
      authorization: authorizationOf(own),
      code: outcome.code,
      detail: outcome.detail,
      elapsedMs: Math.round(performance.now() - begin),
    };
  }
}

type Outcome = { code: EndpointCheck["code"]; detail: string; digest?: string };
type Try = {
  ref: Reference;
  wanted: { tag?: string; digest?: string };
  signal: AbortSignal;
};

/** Manifest, the one of this platform, and a blob: registries often keep blobs elsewhere. */
async function tried(session: Session, endpoint: Endpoint, o: Try): Promise<Outcome> {
  const byTag = o.ref.digest === undefined && endpoint.canResolve;
  if (!byTag && o.wanted.digest === undefined) {
    return { code: "", detail: "not asked: no one before it says which digest the tag means" };
  }
  const signal = AbortSignal.any([o.signal, AbortSignal.timeout(endpointMs)]);
  try {
    const top = await fetchManifest(session, byTag ? { tag: o.ref.tag } : o.wanted, signal);
    const { digest } = top;
    if (!endpoint.canPull) return { code: "OK", detail: `the tag is ${digest}`, digest };
    const { config, layers } = await imageManifest(session, top, { what: o.ref.name, signal });
    await fetchBlob(session, config, { bytesMax: configBytesMax, signal });
    const bytes = layers.reduce((sum, { size }) => sum + size, 0);
    return {
      code: "OK",
      detail: `has ${digest}, ${layers.length} layers of ${bytes} bytes`,
      digest,
    };
  } catch (error) {
    throwIfAborted(o.ref.name, o.signal);
    return { code: codeOf(error), detail: messageOf(error) };
  }
}

function described(endpoint: Endpoint, choice: Choice) {
  const { url, isOrigin, canPull, canResolve, from, headers, tls } = endpoint;
  const names = Object.keys(headers);
  const credentials = [choice.problem ?? whose(choice), ...names.map((name) => `header ${name}`)];
  return {
    url,
    role: isOrigin ? "registry" : "mirror",
    from,
    capabilities: [...(canResolve ? ["resolve"] : []), ...(canPull ? ["pull"] : [])],
    proxy: proxyOf(url),
    tls: url.startsWith("https:") ? tlsOf(tls) : "none",
    credentials: credentials.join("; "),
  };
}

function proxyOf(url: string): string {
  try {
    return proxyFor(new URL(url))?.about ?? "none";
  } catch (error) {
    return messageOf(error);
  }
}

function tlsOf({ skipVerify, files = [] }: Endpoint["tls"]): string {
  const trust = skipVerify ? "not verified" : "verified with the host's authorities";
  return files.length === 0 ? trust : `${trust}, and ${files.join(", ")}`;
}

function whose({ credentials, from }: Choice): string {
  if (credentials === undefined) return from;
  const { username, identityToken, registryToken } = credentials;
  if (registryToken !== undefined) return `registry token, ${from}`;
  if (identityToken !== undefined) return `identity token, ${from}`;
  return `user ${quoted(username ?? "")}, ${from}`;
}

function authorizationOf({ authorizations: [authorization] }: Session): string {
  return authorization?.split(" ")[0]?.toLowerCase() ?? "";
}
