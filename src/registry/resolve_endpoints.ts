// Resolves a registry to its endpoints: those of containerd's hosts.toml, else the mirrors and insecure
// registries of daemon.json, else the registry itself.
// Decision: a hosts.toml for a registry replaces daemon.json's settings for it; registry-mirrors apply to
// docker.io only, as in Docker and iSulad.
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import { readSettingsIfExists } from "../base/settings_file.ts";
import { withoutEnding } from "../base/text.ts";
import { dockerCertificates, unreadable } from "./certificates.ts";
import { defaultHosts, isOwnHost, registryUrl, type Endpoint, type Tls } from "./endpoint.ts";
import { endpointsOfHostsFile, parseHostsFile } from "./hosts_toml.ts";
import { inNetwork, isLoopback } from "./ip_network.ts";

export type RegistryOptions = {
  mirrors: string[];
  /** host, host:port, or a network such as 10.0.0.0/8. */
  insecure: string[];
  /** A certs.d tree: HOST/hosts.toml; "" for none. */
  configPath: string;
  /** Docker's config.json with the node's own credentials; "" for none. */
  authFile: string;
  /** How long a transfer may receive no byte. */
  progressTimeoutMs: number;
};

/** Returns a registry's endpoints, preferred ones first. @throws CriError FAILED_PRECONDITION naming the wrong file. */
export async function resolveEndpoints(
  domain: string,
  options: RegistryOptions,
): Promise<Endpoint[]> {
  const origins = originsOf(domain, options);
  const folder = await configFolder(domain, options.configPath);
  const file = folder === undefined ? "" : join(folder, "hosts.toml");
  let text: string | undefined;
  try {
    text = file === "" ? undefined : readSettingsIfExists(file);
  } catch (error) {
    unreadable(error);
  }
  if (folder !== undefined && text) {
    return await endpointsOfHostsFile(parseHostsFile(text, file), { file, folder, origins });
  }
  const tls = folder === undefined ? undefined : await dockerCertificates(folder);
  const mirrors = domain === "docker.io" ? options.mirrors : [];
  const ofMirrors = await Promise.all(
    mirrors.map((mirror) => mirrorEndpoints(mirror, domain, options)),
  );
  return [...ofMirrors.flat(), ...origins.map((origin) => withTls(origin, tls))];
}

/** Returns the registry's folder: the first that exists, even if it is empty (containerd, HostDirFromRoot). */
async function configFolder(domain: string, configPath: string): Promise<string | undefined> {
  if (configPath === "") return undefined;
  // HOST_PORT_ is the form for file systems without colons in names.
  const names = new Set([domain.replace(/:(\d+)$/, "_$1_"), domain, "_default"]);
  for (const name of names) {
    const folder = join(configPath, name);
    try {
      await stat(folder);
      return folder;
    } catch (error) {
      if (errnoOf(error) !== "ENOENT") unreadable(error);
    }
  }
  return undefined;
}

// -- daemon.json ----------------------------------------------------------------------------------

function originsOf(domain: string, options: RegistryOptions): Endpoint[] {
  const host = defaultHosts[domain] ?? domain;
  const skipVerify = isInsecure(domain, options.insecure);
  const from = skipVerify ? insecureBy(domain) : "default";
  const o = { isOrigin: true, skipVerify, from };
  const secure = endpoint(`https://${host}/v2`, o);
  return skipVerify ? [secure, endpoint(`http://${host}/v2`, o)] : [secure];
}

function insecureBy(domain: string): string {
  return isLoopback(hostName(domain)) ? "default of loopback" : "insecure-registries";
}

async function mirrorEndpoints(
  mirror: string,
  domain: string,
  options: RegistryOptions,
): Promise<Endpoint[]> {
  const base = mirror.includes("://") ? mirror : `https://${mirror}`;
  const url = registryUrl(base, "registry-mirrors");
  if (isOwnHost(domain, url)) return []; // the registry itself comes last anyway
  // As in Docker, a mirror's certificates are in the folder named after the mirror.
  const folder = await configFolder(url.host, options.configPath);
  const tls = folder === undefined ? undefined : await dockerCertificates(folder);
  const skipVerify = isInsecure(url.host, options.insecure);
  const path = `${url.host}${withoutEnding(url.pathname, "/")}/v2`;
  const o = { isOrigin: false, skipVerify, from: "registry-mirrors" };
  const found = withTls(endpoint(`${url.protocol}//${path}`, o), tls);
  if (!skipVerify || url.protocol === "http:" || mirror.includes("://")) return [found];
  return [found, endpoint(`http://${path}`, o)];
}

type EndpointKind = Pick<Endpoint, "isOrigin" | "from"> & { skipVerify: boolean };

function endpoint(url: string, { skipVerify, ...kind }: EndpointKind): Endpoint {
  return { url, ...kind, canPull: true, canResolve: true, headers: {}, tls: { skipVerify } };
}

function withTls(endpoint: Endpoint, tls: Tls | undefined): Endpoint {
  if (tls === undefined) return endpoint;
  return { ...endpoint, tls: { ...tls, skipVerify: endpoint.tls.skipVerify } };
}

/** Tests for a listed registry; loopback needs no listing, because its traffic stays on this host. */
export function isInsecure(domain: string, insecure: string[]): boolean {
  const host = hostName(domain);
  if (isLoopback(host)) return true;
  return insecure.some((entry) => {
    const name = withoutEnding(entry.replace(/^https?:\/\//, ""), "/");
    return name === domain || name === host || inNetwork(host, name);
  });
}

function hostName(domain: string): string {
  return domain.replace(/:\d+$/, "");
}
