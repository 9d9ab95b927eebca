// Chooses the credentials for a registry: those of the pull, else the node's own from a file in the format
// of Docker's config.json (auths, credHelpers, credsStore).
import * as v from "valibot";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { jsonValue, withoutNulls } from "../base/json.ts";
import { readSettings } from "../base/settings_file.ts";
import { quoted, withoutEnding } from "../base/text.ts";
import { type RunResult, run } from "../sys/run.ts";
import { mapOf, objectOf, parseAs } from "../base/schema.ts";

/** CRI's AuthConfig; empty strings count as absent. */
export type RegistryAuth = {
  username?: string | null;
  password?: string | null;
  /** base64 of username:password. */
  auth?: string | null;
  serverAddress?: string | null;
  identityToken?: string | null;
  registryToken?: string | null;
};

export type Credentials = {
  username?: string;
  password?: string;
  identityToken?: string;
  registryToken?: string;
};

/** The credentials for one endpoint. Plain data: it is sent to the helper that fetches layers. */
export type ResolvedCredentials = {
  credentials?: Credentials;
  /** Why configured credentials are missing; reported only if the registry asks for them. */
  problem?: string;
  /** Their source without any secret, for messages. */
  from: string;
};

/**
 * Returns the credentials of a pull if they are for this registry.
 * @throws CriError INVALID_ARGUMENT if `auth` is not base64 of user:password.
 */
export function credentialsFor(
  domain: string,
  auth: RegistryAuth | undefined,
): Credentials | undefined {
  if (auth === undefined) return undefined;
  if (auth.serverAddress && registryHost(auth.serverAddress) !== registryHost(domain))
    return undefined;
  if (auth.registryToken) return { registryToken: auth.registryToken };
  if (auth.identityToken) {
    return { identityToken: auth.identityToken, username: auth.username ?? "" };
  }
  if (auth.username) return { username: auth.username, password: auth.password ?? "" };
  return auth.auth ? userAndPassword(auth.auth) : undefined;
}

function userAndPassword(auth: string): Credentials {
  const [, username, password] =
    /^([^:]*):([^]*)$/.exec(Buffer.from(auth, "base64").toString("utf8")) ?? [];
  if (username === undefined || password === undefined) {
    throw new CriError("INVALID_ARGUMENT", "auth is not base64 of user:password");
  }
  return { username, password: withoutEnding(password, "\0") };
}

/** Normalizes the spellings of a registry's address. */
function registryHost(address: string): string {
  const host = address.replace(/^https?:\/\//, "").split("/")[0]!;
  const isDocker = host === "index.docker.io" || host === "registry-1.docker.io";
  return isDocker ? "docker.io" : host;
}

// -- the node's own credentials -------------------------------------------------------------------

const text = v.optional(v.string(), "");
const AuthEntry = objectOf({
  username: text,
  password: text,
  auth: text,
  identitytoken: text,
  registrytoken: text,
});
const AuthFile = objectOf({
  auths: v.optional(mapOf(v.string(), AuthEntry), {}),
  credHelpers: v.optional(mapOf(v.string(), v.string()), {}),
  credsStore: text,
});
type AuthFile = v.InferOutput<typeof AuthFile>;

const helperMs = 10_000;

/** @throws CriError FAILED_PRECONDITION that shows nothing of the file's content. */
export function readAuthFile(path: string): AuthFile | undefined {
  if (path === "") return undefined;
  let parsed: unknown;
  try {
    parsed = jsonValue(readSettings(path));
  } catch (error) {
    const reason = error instanceof SyntaxError ? "it is not JSON" : messageOf(error);
    const hint = errnoOf(error) === "ENOENT" ? "; create it, or unset registry-auth-file" : "";
    const message = `registry-auth-file ${path}: ${reason}${hint}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  }
  try {
    return parseAs(AuthFile, withoutNulls(parsed), path);
  } catch (error) {
    throw new CriError("FAILED_PRECONDITION", `registry-auth-file: ${messageOf(error)}`);
  }
}

type CredentialsLookup = {
  /** The registry, or the mirror's host. */
  host: string;
  repository: string;
  /** The auth file, for messages. */
  path: string;
  signal: AbortSignal;
};

/** Looks in Docker's order: the registry's own helper, the common store, the file's entries. */
export async function nodeCredentials(
  file: AuthFile | undefined,
  lookup: CredentialsLookup,
): Promise<ResolvedCredentials> {
  if (file === undefined) return { from: "none" };
  const host = registryHost(lookup.host);
  const [server] = Object.keys(file.credHelpers).filter((name) => registryHost(name) === host);
  if (server !== undefined) return await runHelper(file.credHelpers[server]!, server, lookup);
  if (file.credsStore !== "") {
    const stored = host === "docker.io" ? "https://index.docker.io/v1/" : host;
    const found = await runHelper(file.credsStore, stored, lookup);
    if (found.credentials !== undefined || found.problem !== undefined) return found;
  }
  return entryOf(file, host, lookup);
}

/** A key may name a part of the registry, such as registry.example/team; the longest match wins. */
function entryOf(
  file: AuthFile,
  host: string,
  { repository, path }: CredentialsLookup,
): ResolvedCredentials {
  const keys = Object.keys(file.auths).filter((key) => {
    const part = partOf(key);
    return registryHost(key) === host && `${repository}/`.startsWith(part === "" ? "" : `${part}/`);
  });
  const [key] = keys.sort((a, b) => partOf(b).length - partOf(a).length);
  if (key === undefined) return { from: `none (${path} has none for ${host})` };
  const { identitytoken, registrytoken, ...rest } = file.auths[key]!;
  const from = `${path}, auths ${quoted(key)}`;
  try {
    const auth = { ...rest, identityToken: identitytoken, registryToken: registrytoken };
    return { credentials: credentialsFor(host, auth), from };
  } catch (error) {
    return { problem: `${from}: ${messageOf(error)}`, from };
  }
}

/** Returns the path of a key without the API version that Docker appends. */
function partOf(key: string): string {
  const [, ...parts] = key.replace(/^https?:\/\//, "").split("/");
  const path = withoutEnding(parts.join("/"), "/");
  return /^v[12]$/.test(path) ? "" : path;
}

const HelperAnswer = v.object({ Username: v.string(), Secret: v.string() });

/** Runs docker-credential-NAME get (github.com/docker/docker-credential-helpers). */
async function runHelper(
  name: string,
  server: string,
  { path, signal }: CredentialsLookup,
): Promise<ResolvedCredentials> {
  const program = `docker-credential-${name}`;
  const from = `${program} (${path})`;
  const failed = (why: string) => ({ problem: `${program} for ${server}: ${why}`, from });
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name)) return failed("it is not a program name");
  let result: RunResult;
  try {
    const bounded = AbortSignal.any([signal, AbortSignal.timeout(helperMs)]);
    result = await run([program, "get"], { input: server, signal: bounded });
  } catch (error) {
    throwIfAborted(program, signal);
    return failed(messageOf(error));
  }
  if (result.exitCode !== 0) {
    // Its output is not shown: it may hold a secret.
    const isAbsent = /credentials not found/i.test(result.stdout + result.stderr);
    if (isAbsent) return { from: `none (${program} has none for ${server})` };
    return failed(`it exited with ${result.exitCode}; try: echo ${server} | ${program} get`);
  }
  try {
    const { Username, Secret } = parseAs(HelperAnswer, jsonValue(result.stdout), "its answer");
    // The helpers' marker for an identity token instead of a password.
    if (Username === "<token>") return { credentials: { identityToken: Secret }, from };
    return { credentials: { username: Username, password: Secret }, from };
  } catch {
    return failed("its answer is not JSON with Username and Secret");
  }
}
