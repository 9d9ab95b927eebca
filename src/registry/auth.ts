// Answers a registry's 401 challenge: with Basic credentials, or a token from its token service.
import { URL, URLSearchParams } from "node:url";
import type { Credentials } from "./credentials.ts";
import { TransferError } from "./http_request.ts";

export type Challenge = { scheme: string; params: Map<string, string> };

/** Parses a WWW-Authenticate header (RFC 9110, 11.6.1), which may hold several challenges. */
export function parseChallenges(header: string): Challenge[] {
  const challenges: Challenge[] = [];
  // One class for blanks and commas: `\s*,?\s*` would try every way to divide a long row of blanks.
  const token =
    /[\s,]*([A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?/y;
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

type TokenOptions = {
  scope: string | undefined;
  credentials: Credentials | undefined;
  registryUrl: string;
  /** Sends user name and password as OAuth2 has it, for a service that does not know GET. */
  byForm?: boolean;
};

/** Builds the request to a token service (distribution's token and OAuth2 specifications). */
export function tokenRequest(challenge: Challenge, o: TokenOptions): TokenRequest {
  const realm = challenge.params.get("realm") ?? "";
  if (!URL.canParse(realm) || !/^https?:/i.test(realm)) {
    throw new TransferError("UNAUTHENTICATED", `${o.registryUrl} names an invalid token service`);
  }
  const url = new URL(realm);
  if (o.registryUrl.startsWith("https:") && url.protocol === "http:" && o.credentials) {
    const message = `${o.registryUrl} asks to send the password unencrypted to ${url.host}: refused`;
    throw new TransferError("UNAUTHENTICATED", message);
  }
  const service = challenge.params.get("service");
  // Add this repository's, like containerd: a challenge may have none, or a proxy's name for the repository.
  const named = (challenge.params.get("scope") ?? "").split(" ").filter((scope) => scope !== "");
  const scopes = new Set(o.scope === undefined ? named : [o.scope, ...named]);
  const grant = o.credentials && grantOf(o.credentials, o.byForm === true);
  if (grant !== undefined) {
    const form = new URLSearchParams({
      ...grant,
      client_id: "isulad-ts",
      scope: [...scopes].join(" "),
    });
    if (service !== undefined) form.set("service", service);
    const headers = { "content-type": "application/x-www-form-urlencoded" };
    return { url: url.href, method: "POST", headers, body: form.toString() };
  }
  if (service !== undefined) url.searchParams.set("service", service);
  for (const scope of scopes) url.searchParams.append("scope", scope);
  const headers: Record<string, string> = {};
  if (o.credentials?.username) headers["authorization"] = basic(o.credentials);
  return { url: url.href, method: "GET", headers };
}

/** Returns the grant of an OAuth2 form; undefined for what a GET sends. */
function grantOf(
  { identityToken, username, password = "" }: Credentials,
  byForm: boolean,
): Record<string, string> | undefined {
  if (identityToken !== undefined) {
    return { grant_type: "refresh_token", refresh_token: identityToken };
  }
  return byForm && username ? { grant_type: "password", username, password } : undefined;
}

/** True for the answer to a GET of a token service that may know only POST. */
export function mayKnowPostOnly(status: number): boolean {
  return [400, 403, 404, 405, 501].includes(status);
}

/** Registries and proxies accept no longer headers. */
const tokenBytesMax = 64 << 10;

/** @throws TransferError UNAUTHENTICATED without a token, RESOURCE_EXHAUSTED for a huge one. */
export function tokenOf(answer: unknown, service: string): string {
  const { token, access_token: accessToken } = (answer ?? {}) as Record<string, unknown>;
  const found = token || accessToken; // some services send both, one of them empty
  if (typeof found === "string" && found.length > tokenBytesMax) {
    const message = `${service} answered with a token of ${found.length} bytes, over ${tokenBytesMax}`;
    throw new TransferError("RESOURCE_EXHAUSTED", message);
  }
  // Printable ASCII only: the token becomes a header.
  if (typeof found === "string" && /^[\x21-\x7e]+$/.test(found)) return found;
  throw new TransferError("UNAUTHENTICATED", `${service} answered without a token`);
}
