// What a registry's 401 asks for: Basic, or a token from its token service.
import { URL, URLSearchParams } from "node:url";
import { CriError } from "../base/errors.ts";

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

/** Plain data: it travels to the helper that fetches layers. */
export type Credentials = {
  username?: string;
  password?: string;
  identityToken?: string;
  registryToken?: string;
};

export type Challenge = { scheme: string; params: Map<string, string> };

/**
 * The credentials that this registry may see, or undefined.
 * @throws CriError INVALID_ARGUMENT when `auth` is not base64 of user:password.
 */
export function credentialsFor(
  domain: string,
  auth: RegistryAuth | undefined,
): Credentials | undefined {
  if (auth === undefined) return undefined;
  if (auth.serverAddress && hostOf(auth.serverAddress) !== hostOf(domain)) return undefined;
  if (auth.registryToken) return { registryToken: auth.registryToken };
  if (auth.identityToken) {
    return { identityToken: auth.identityToken, username: auth.username ?? "" };
  }
  if (auth.username) return { username: auth.username, password: auth.password ?? "" };
  if (!auth.auth) return undefined;
  const [, username, password] =
    /^([^:]*):([^]*)$/.exec(Buffer.from(auth.auth, "base64").toString("utf8")) ?? [];
  if (username === undefined || password === undefined) {
    throw new CriError("INVALID_ARGUMENT", "auth is not base64 of user:password");
  }
  return { username, password: password.replace(/\0+$/, "") };
}

function hostOf(address: string): string {
  const host = address.replace(/^https?:\/\//, "").split("/")[0]!;
  const isDocker = host === "index.docker.io" || host === "registry-1.docker.io";
  return isDocker ? "docker.io" : host;
}

/** Challenges of a WWW-Authenticate header (RFC 9110, 11.6.1); several may stand in one. */
export function parseChallenges(header: string): Challenge[] {
  const challenges: Challenge[] = [];
  const token =
    /\s*,?\s*([A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?/y;
  for (let match = token.exec(header); match !== null; match = token.exec(header)) {
    const [, name, quoted, plain] = match;
    const value = quoted === undefined ? plain : quoted.replace(/\\(.)/g, "$1");
    if (value === undefined) challenges.push({ scheme: name!.toLowerCase(), params: new Map() });
    else challenges.at(-1)?.params.set(name!.toLowerCase(), value);
  }
  return challenges;
}

export function basic({ username = "", password = "" }: Credentials): string {
  return `Basic ${Buffer.from(`${username}:${password}`).toString("base64")}`;
}

export type TokenRequest = {
  url: string;
  method: "GET" | "POST";
  headers: Record<string, string>;
  body?: string;
};

/** The request to a token service (distribution's token and OAuth2 specifications). */
export function tokenRequest(
  challenge: Challenge,
  o: { scope: string; credentials: Credentials | undefined; registryUrl: string },
): TokenRequest {
  const realm = challenge.params.get("realm") ?? "";
  if (!URL.canParse(realm) || !/^https?:/.test(realm)) {
    throw new CriError("UNAUTHENTICATED", `${o.registryUrl} names no valid token service`);
  }
  const url = new URL(realm);
  if (o.registryUrl.startsWith("https:") && url.protocol === "http:" && o.credentials) {
    const message = `${o.registryUrl} wants the password sent unencrypted to ${url.host}: refused`;
    throw new CriError("UNAUTHENTICATED", message);
  }
  const service = challenge.params.get("service");
  const scope = challenge.params.get("scope") ?? o.scope;
  if (o.credentials?.identityToken !== undefined) {
    const form = new URLSearchParams({
      grant_type: "refresh_token",
      client_id: "isulad-ts",
      refresh_token: o.credentials.identityToken,
      scope,
    });
    if (service !== undefined) form.set("service", service);
    const headers = { "content-type": "application/x-www-form-urlencoded" };
    return { url: url.href, method: "POST", headers, body: form.toString() };
  }
  if (service !== undefined) url.searchParams.set("service", service);
  url.searchParams.set("scope", scope);
  const headers: Record<string, string> = {};
  if (o.credentials?.username) headers["authorization"] = basic(o.credentials);
  return { url: url.href, method: "GET", headers };
}

/** @throws CriError UNAUTHENTICATED when the answer holds no token. */
export function tokenOf(answer: unknown, service: string): string {
  const { token, access_token: accessToken } = (answer ?? {}) as Record<string, unknown>;
  const found = token ?? accessToken;
  // A header's value must not break out of its line.
  if (typeof found === "string" && /^[\x21-\x7e]+$/.test(found)) return found;
  throw new CriError("UNAUTHENTICATED", `${service} answered without a token`);
}
