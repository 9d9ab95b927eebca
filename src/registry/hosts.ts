// Where a registry's images may be fetched from: containerd's hosts.toml, else the mirrors and
// insecure registries of daemon.json, else the registry itself.
// Decision: where a hosts.toml speaks for a registry, it alone does; registry-mirrors stand for
// docker.io only, as they do in Docker and iSulad.
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { readTextIfExists } from "../sys/file.ts";
import { dockerCertificates } from "./certificates.ts";
import { registryUrl, type Endpoint, type Tls } from "./endpoint.ts";
import { hostsEndpoints, parseHostsFile } from "./hosts_toml.ts";
import { inNetwork, isLoopback } from "./ip_network.ts";

export type { Endpoint } from "./endpoint.ts";

export type RegistryOptions = {
  mirrors: string[];
  /** host, host:port, or a network such as 10.0.0.0/8. */
  insecure: string[];
  /** A certs.d tree: HOST/hosts.toml; "" for none. */
  configPath: string;
  /** Docker's config.json with the node's own credentials; "" for none. */
  authFile: string;
  /** How long a transfer may bring no byte. */
  progressTimeoutMs: number;
};

const defaultHosts: Record<string, string> = { "docker.io": "registry-1.docker.io" };

/** In the order to try. @throws CriError FAILED_PRECONDITION with the file that is wrong. */
export async function endpointsOf(domain: string, options: RegistryOptions): Promise<Endpoint[]> {
  const origins = originsOf(domain, options);
  const folder = await configFolder(domain, options.configPath);
  const file = folder === undefined ? "" : join(folder, "hosts.toml");
  const text = file === "" ? undefined : await readText(file);
  if (folder !== undefined && text) {
    return await hostsEndpoints(parseHostsFile(text, file), { file, folder, origins });
  }
  const tls = folder === undefined ? undefined : await dockerCertificates(folder);
  const mirrors = domain === "docker.io" ? options.mirrors : [];
  const ofMirrors = mirrors.map((mirror) => mirrorEndpoints(mirror, domain, options));
  return [...(await Promise.all(ofMirrors)).flat(), ...origins.map((at) => withTls(at, tls))];
}

/** What is asked with a registry's own name, not that of a mirror. */
export function isOwnHost(domain: string, host: string): boolean {
  return host === domain || host === defaultHosts[domain];
}

async function readText(file: string): Promise<string | undefined> {
  try {
    return await readTextIfExists(file);
  } catch (error) {
    throw new CriError("FAILED_PRECONDITION", messageOf(error), { cause: error });
  }
}

/** The first one that is there speaks, even if it is empty (containerd, HostDirFromRoot). */
async function configFolder(domain: string, configPath: string): Promise<string | undefined> {
  if (configPath === "") return undefined;
  // HOST_PORT_ is how a port is spelt where file names take no colon.
  const names = new Set([domain.replace(/:(\d+)$/, "_$1_"), domain, "_default"]);
  for (const name of names) {
    const folder = join(configPath, name);
    try {
      await stat(folder);
      return folder;
    } catch (error) {
      if (errnoOf(error) === "ENOENT") continue;
      throw new CriError("FAILED_PRECONDITION", messageOf(error), { cause: error });
    }
  }
  return undefined;
}

// -- daemon.json ----------------------------------------------------------------------------------

function originsOf(domain: string, options: RegistryOptions): Endpoint[] {
  const host = defaultHosts[domain] ?? domain;
  const isListed = isInsecure(domain, options.insecure);
  const o = {
    isOrigin: true,
    skipVerify: isListed,
    from: isListed ? whyInsecure(domain) : "default",
  };
  const secure = endpoint(`https://${host}/v2`, o);
  return isListed ? [secure, endpoint(`http://${host}/v2`, o)] : [secure];
}

function whyInsecure(domain: string): string {
  return isLoopback(hostName(domain)) ? "default of loopback" : "insecure-registries";
}

async function mirrorEndpoints(
  mirror: string,
  domain: string,
  options: RegistryOptions,
): Promise<Endpoint[]> {
  const base = mirror.includes("://") ? mirror : `https://${mirror}`;
  const url = registryUrl(base, "registry-mirrors");
  if (isOwnHost(domain, url.host)) return []; // comes last anyway
  // Docker keeps the certificates of each mirror in a folder of that one's name.
  const folder = await configFolder(url.host, options.configPath);
  const tls = folder === undefined ? undefined : await dockerCertificates(folder);
  const skipVerify = isInsecure(url.host, options.insecure);
  const path = `${url.host}${url.pathname.replace(/\/+$/, "")}/v2`;
  const o = { isOrigin: false, skipVerify, from: "registry-mirrors" };
  const found = withTls(endpoint(`${url.protocol}//${path}`, o), tls);
  if (!skipVerify || url.protocol === "http:" || mirror.includes("://")) return [found];
  return [found, endpoint(`http://${path}`, o)];
}

type Kind = { isOrigin: boolean; skipVerify: boolean; from: string };

function endpoint(url: string, { isOrigin, skipVerify, from }: Kind): Endpoint {
  const all = { canPull: true, canResolve: true, headers: {} };
  return { url, isOrigin, ...all, tls: { skipVerify }, from };
}

function withTls(at: Endpoint, tls: Tls | undefined): Endpoint {
  if (tls === undefined) return at;
  return { ...at, tls: { ...tls, skipVerify: at.tls.skipVerify } };
}

/** Loopback counts as insecure without being listed: nobody else can listen in. */
export function isInsecure(domain: string, insecure: string[]): boolean {
  const host = hostName(domain);
  if (isLoopback(host)) return true;
  return insecure.some((entry) => {
    const name = entry.replace(/^https?:\/\//, "").replace(/\/+$/, "");
    return name === domain || name === host || inNetwork(host, name);
  });
}

function hostName(domain: string): string {
  return domain.replace(/:\d+$/, "");
}
