// What is known about one repository while a pull lasts.
import { throwIfAborted } from "../base/abort.ts";
import {
  credentialsFor,
  ownCredentials,
  readAuthFile,
  type Choice,
  type RegistryAuth,
} from "./credentials.ts";
import type { Endpoint } from "./endpoint.ts";
import { endpointsOf, type RegistryOptions } from "./hosts.ts";
import type { Reference } from "./reference.ts";
import { hostOf } from "./transfer.ts";

/** Plain data: it travels to the helper that fetches layers. The lists go by endpoint. */
export type Session = {
  domain: string;
  repository: string;
  endpoints: Endpoint[];
  choices: Choice[];
  /** Authorization header, as far as one was asked for. */
  authorizations: (string | null)[];
  /** Did not answer, or not well, when it was last asked: it comes after the others. */
  unwell: boolean[];
  /** Whose answer was taken last. */
  answered: number;
  /** Whether a connection came about, where that has a bound of its own. */
  reached: boolean[];
  /** Whether a registry answered, and not whatever else may listen there. */
  spoke: boolean[];
  /** How often all are asked before it is given up. */
  roundsMax: number;
  progressTimeoutMs: number;
};

const roundsMax = 4;

/** @throws CriError FAILED_PRECONDITION for a wrong file, INVALID_ARGUMENT for wrong credentials. */
export async function openSession(
  ref: Reference,
  options: RegistryOptions,
  o: { auth: RegistryAuth | undefined; signal: AbortSignal },
): Promise<Session> {
  throwIfAborted(ref.name, o.signal);
  const endpoints = await endpointsOf(ref.domain, options);
  const file = await readAuthFile(options.authFile);
  const choose = async (endpoint: Endpoint): Promise<Choice> => {
    const given = givenFor(endpoint, ref.domain, o.auth);
    if (given !== undefined) return given;
    const host = endpoint.isOrigin ? ref.domain : hostOf(endpoint.url);
    const asked = { host, repository: ref.path, path: options.authFile, signal: o.signal };
    return await ownCredentials(file, asked);
  };
  return {
    domain: ref.domain,
    repository: ref.path,
    endpoints,
    choices: await Promise.all(endpoints.map(choose)),
    authorizations: endpoints.map(() => null),
    unwell: endpoints.map(() => false),
    answered: 0,
    reached: endpoints.map(() => false),
    spoke: endpoints.map(() => false),
    roundsMax,
    progressTimeoutMs: options.progressTimeoutMs,
  };
}

/** Mirrors are somebody else: they see what was given for them by their own name alone. */
function givenFor(
  endpoint: Endpoint,
  domain: string,
  auth: RegistryAuth | undefined,
): Choice | undefined {
  const isForMirror = Boolean(auth?.serverAddress) && !endpoint.isOrigin;
  const host = endpoint.isOrigin ? domain : isForMirror ? hostOf(endpoint.url) : undefined;
  const credentials = host === undefined ? undefined : credentialsFor(host, auth);
  return credentials && { credentials, from: "given with the pull" };
}

/** The session with those of its endpoints alone that `keep` picks. */
export function withEndpoints(
  session: Session,
  keep: (at: Endpoint, i: number) => boolean,
): Session {
  const isKept = session.endpoints.map(keep);
  const pick = <T>(list: T[]) => list.filter((_, index) => isKept[index]);
  return {
    ...session,
    endpoints: pick(session.endpoints),
    choices: pick(session.choices),
    authorizations: pick(session.authorizations),
    unwell: pick(session.unwell),
    answered: 0,
    reached: pick(session.reached),
    spoke: pick(session.spoke),
  };
}
