// Opens the session of a pull from one repository: its upstreams with their credentials, tokens and health.
import { throwIfAborted } from "../base/abort.ts";
import {
  credentialsFor,
  nodeCredentials,
  readAuthFile,
  type ResolvedCredentials,
  type RegistryAuth,
} from "./credentials.ts";
import { credentialsName, type Endpoint } from "./endpoint.ts";
import type { Reference } from "./reference.ts";
import { resolveEndpoints, type RegistryOptions } from "./resolve_endpoints.ts";

/** An endpoint together with what this pull may send it and has learned about it. */
export type Upstream = Endpoint & {
  auth: ResolvedCredentials;
  /** Authorization header obtained for the last challenge of each origin: its own, and those it redirects to. */
  authorizations: Record<string, string>;
  /** Its last request failed in a way that may pass: healthy upstreams are tried first. */
  isFailing: boolean;
  /** A connection was established; only tested where dialTimeoutMs is set. */
  isReachable: boolean;
  /** A response came from a registry, not from some other web server at that address. */
  isRegistry: boolean;
};

/** Plain data: it is sent to the helper that fetches layers. */
export type PullSession = {
  domain: string;
  repository: string;
  /** In order of preference. */
  upstreams: Upstream[];
  /** Host of the upstream that served the last request; "" before the first. */
  servedBy: string;
  /** Attempts per upstream before a request fails. */
  triesMax: number;
  firstBackoffMs: number;
  progressTimeoutMs: number;
};

/** @throws CriError FAILED_PRECONDITION for a wrong file, INVALID_ARGUMENT for wrong credentials. */
export async function openPullSession(
  ref: Reference,
  options: RegistryOptions,
  { auth, signal }: { auth: RegistryAuth | undefined; signal: AbortSignal },
): Promise<PullSession> {
  throwIfAborted(ref.name, signal);
  const endpoints = await resolveEndpoints(ref.domain, options);
  const file = readAuthFile(options.authFile);
  const upstreamAt = async (endpoint: Endpoint): Promise<Upstream> => {
    const host = credentialsName(endpoint, ref.domain);
    const lookup = { host, repository: ref.path, path: options.authFile, signal };
    const given = givenCredentials(endpoint, ref.domain, auth);
    return newUpstream(endpoint, given ?? (await nodeCredentials(file, lookup)));
  };
  return {
    domain: ref.domain,
    repository: ref.path,
    upstreams: await Promise.all(endpoints.map(upstreamAt)),
    servedBy: "",
    triesMax: 4,
    firstBackoffMs: 500,
    progressTimeoutMs: options.progressTimeoutMs,
  };
}

export function newUpstream(endpoint: Endpoint, auth: ResolvedCredentials): Upstream {
  const learned = { isFailing: false, isReachable: false, isRegistry: false };
  return { ...endpoint, auth, authorizations: {}, ...learned };
}

/** True if its requests may have secrets: it is unknown whether the registry, which need not ask, would answer without. */
export function usesSecrets({ upstreams }: PullSession): boolean {
  return upstreams.some(
    ({ auth, headers, tls }) =>
      auth.credentials !== undefined || tls.cert !== undefined || Object.keys(headers).length > 0,
  );
}

/** Mirrors are third parties: they get the pull's own credentials only if serverAddress names them. */
export function givenCredentials(
  endpoint: Endpoint,
  domain: string,
  auth: RegistryAuth | undefined,
): ResolvedCredentials | undefined {
  const name = credentialsName(endpoint, domain);
  if (name !== domain && !auth?.serverAddress) return undefined;
  const credentials = credentialsFor(name, auth);
  return credentials && { credentials, from: "given with the pull" };
}
