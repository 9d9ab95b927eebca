// Checks the upstreams of an image in the order of a pull, and reports how each responds. Keeps nothing.
import { URL } from "node:url";
import { throwIfAborted } from "../base/abort.ts";
import { byteText } from "../base/byte_text.ts";
import { codeOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { fetchBlob, fetchManifest } from "../registry/distribution.ts";
import { proxyFor } from "../registry/proxy.ts";
import { openPullSession, type PullSession, type Upstream } from "../registry/pull_session.ts";
import type { Reference } from "../registry/reference.ts";
import { configBytesMax } from "./manifest.ts";
import { imageManifest, type FetchOptions } from "./pull.ts";

/** Texts for the terminal, without any secret. */
export type EndpointCheck = {
  url: string;
  /** "registry" or "mirror". */
  role: string;
  /** The file or setting that configures it. */
  from: string;
  capabilities: string[];
  proxy: string;
  tls: string;
  credentials: string;
  /** The schemes that authorized the requests; "" if none was needed. */
  authorization: string;
  /** OK; a failure's code; "" if nothing could be requested. */
  code: ErrorCode | "OK" | "";
  detail: string;
  elapsedMs: number;
};

/** Bounds the check of one upstream; a silent one ends earlier, by the progress timeout. */
const upstreamMs = 60_000;

/** @throws CriError FAILED_PRECONDITION for a wrong file, CANCELLED, DEADLINE_EXCEEDED. */
export async function* checkRegistry(
  ref: Reference,
  options: FetchOptions,
): AsyncGenerator<EndpointCheck, void, undefined> {
  const session = await openPullSession(ref, options.registry, options);
  /** The tag's digest, for upstreams that serve digests only. */
  let digest = ref.digest;
  for (const upstream of session.upstreams) {
    throwIfAborted(ref.name, options.signal);
    const wanted = digest === undefined ? { tag: ref.tag } : { digest };
    const alone = { ...session, upstreams: [upstream], triesMax: 1 };
    const startMs = performance.now();
    const outcome = await check(alone, upstream, { ref, wanted, signal: options.signal });
    digest ??= outcome.digest;
    yield {
      ...describe(upstream),
      authorization: schemesText(upstream.authorizations),
      code: outcome.code,
      detail: outcome.detail,
      elapsedMs: Math.round(performance.now() - startMs),
    };
  }
}

type Outcome = { code: EndpointCheck["code"]; detail: string; digest?: string };
type Check = { ref: Reference; wanted: { tag?: string; digest?: string }; signal: AbortSignal };

/** Fetches the manifest, this platform's manifest and a blob: registries often store blobs elsewhere. */
async function check(session: PullSession, upstream: Upstream, o: Check): Promise<Outcome> {
  const byTag = o.ref.digest === undefined && upstream.canResolve;
  if (!byTag && o.wanted.digest === undefined) {
    return { code: "", detail: "not checked: no endpoint before it resolved the tag to a digest" };
  }
  const signal = AbortSignal.any([o.signal, AbortSignal.timeout(upstreamMs)]);
  try {
    const top = await fetchManifest(session, byTag ? { tag: o.ref.tag } : o.wanted, signal);
    const { digest } = top;
    if (!upstream.canPull) return { code: "OK", detail: `the tag is ${digest}`, digest };
    const { config, layers } = await imageManifest(session, top, { what: o.ref.name, signal });
    await fetchBlob(session, config, { bytesMax: configBytesMax, signal });
    const bytes = layers.reduce((sum, { size }) => sum + (size ?? 0), 0);
    const detail = `has ${digest}, ${layers.length} layers of ${byteText(bytes)}`;
    return { code: "OK", detail, digest };
  } catch (error) {
    throwIfAborted(o.ref.name, o.signal);
    return { code: codeOf(error), detail: messageOf(error) };
  }
}

function describe(upstream: Upstream) {
  const { url, isOrigin, canPull, canResolve, from, headers, tls } = upstream;
  const headerNames = Object.keys(headers).map((name) => `header ${name}`);
  return {
    url,
    role: isOrigin ? "registry" : "mirror",
    from,
    capabilities: [...(canResolve ? ["resolve"] : []), ...(canPull ? ["pull"] : [])],
    proxy: proxyOf(url),
    tls: url.startsWith("https:") ? tlsText(tls) : "none",
    credentials: [credentialsText(upstream.auth), ...headerNames].join("; "),
  };
}

function proxyOf(url: string): string {
  try {
    return proxyFor(new URL(url))?.about ?? "none";
  } catch (error) {
    return messageOf(error);
  }
}

function tlsText({ skipVerify, files = [] }: Upstream["tls"]): string {
  const trust = skipVerify ? "not verified" : "verified with the system CAs";
  return files.length === 0 ? trust : `${trust}, and ${files.join(", ")}`;
}

/** Two where the upstream redirects to a registry that has another. */
function schemesText(authorizations: Upstream["authorizations"]): string {
  const schemes = Object.values(authorizations).map((line) => line.split(" ")[0]!.toLowerCase());
  return [...new Set(schemes)].join(", ");
}

export function credentialsText({ credentials, problem, from }: Upstream["auth"]): string {
  if (problem !== undefined) return problem;
  if (credentials === undefined) return from;
  const { username, identityToken, registryToken } = credentials;
  if (registryToken !== undefined) return `registry token, ${from}`;
  if (identityToken !== undefined) return `identity token, ${from}`;
  return `user ${quoted(username ?? "")}, ${from}`;
}
