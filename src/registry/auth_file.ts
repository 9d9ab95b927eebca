// Writes the credentials of a pull in the format of Docker's config.json, for programs that ask the registry
// themselves.
import { jsonText } from "../base/json.ts";
import type { Credentials } from "./credentials.ts";
import { credentialsName } from "./endpoint.ts";
import type { PullSession } from "./pull_session.ts";

/** Returns { auths: { HOST: … } } as text; undefined where no upstream has credentials. */
export function authFileText({ domain, upstreams }: PullSession): string | undefined {
  const auths = upstreams.flatMap((upstream) => {
    const { credentials } = upstream.auth;
    if (credentials === undefined) return [];
    return [[serverName(credentialsName(upstream, domain)), entryOf(credentials)] as const];
  });
  return auths.length === 0 ? undefined : jsonText({ auths: Object.fromEntries(auths) });
}

/** Docker Hub has an entry under its old address. */
function serverName(domain: string): string {
  return domain === "docker.io" ? "https://index.docker.io/v1/" : domain;
}

function entryOf({ username, password, identityToken, registryToken }: Credentials): object {
  if (registryToken !== undefined) return { registrytoken: registryToken };
  const user = username ?? "";
  if (identityToken !== undefined) return { username: user, identitytoken: identityToken };
  const auth = Buffer.from(`${user}:${password ?? ""}`).toString("base64");
  return { username: user, password: password ?? "", auth };
}
