// Where a registry's images may be fetched from: containerd's hosts.toml, else the mirrors and
// insecure registries of daemon.json, else the registry itself.
// Decision: where a hosts.toml speaks for a registry, it alone does; registry-mirrors stand for
// docker.io only, as they do in Docker and iSulad.
import { readdir, readFile } from "node:fs/promises";
import { isIPv4 } from "node:net";
import { isAbsolute, join } from "node:path";
import { URL } from "node:url";
import { parse as parseToml } from "smol-toml";
import * as v from "valibot";
import { CriError, messageOf } from "../base/errors.ts";
import { readTextIfExists } from "../sys/file.ts";
import { parseAs } from "./manifest.ts";

export type RegistryOptions = {
  mirrors: string[];
  /** host, host:port, or an IPv4 network such as 10.0.0.0/8. */
  insecure: string[];
  /** A certs.d tree: HOST/hosts.toml; "" for none. */
  configPath: string;
  /** How long a transfer may bring no byte. */
  progressTimeoutMs: number;
};

/** One place to ask. Plain data: it travels to the helper that fetches layers. */
export type Endpoint = {
  /** What goes before /REPOSITORY/manifests/…; ends in /v2 as a rule, never in a slash. */
  url: string;
  /** The registry itself, which credentials for it may be shown to. */
  isOrigin: boolean;
  /** Whether it may say which image a tag means now. */
  canResolve: boolean;
  headers: Record<string, string>;
  tls: { ca?: string[]; cert?: string; key?: string; skipVerify: boolean };
};

const defaultHosts: Record<string, string> = { "docker.io": "registry-1.docker.io" };

const oneOrMore = v.optional(v.union([v.string(), v.array(v.string())]));
const HostFields = {
  capabilities: v.optional(v.array(v.string())),
  ca: oneOrMore,
  client: v.optional(v.union([v.string(), v.array(v.union([v.string(), v.array(v.string())]))])),
  skip_verify: v.optional(v.boolean(), false),
  override_path: v.optional(v.boolean(), false),
  header: v.optional(v.record(v.string(), v.union([v.string(), v.array(v.string())])), {}),
};
const Host = v.object(HostFields);
type Host = v.InferOutput<typeof Host>;
const HostsFile = v.object({
  ...HostFields,
  server: v.optional(v.string()),
  host: v.optional(v.record(v.string(), Host), {}),
});

/** In the order to try. @throws CriError FAILED_PRECONDITION with the file that is wrong. */
export async function endpointsOf(domain: string, options: RegistryOptions): Promise<Endpoint[]> {
  for (const folder of configFolders(domain, options.configPath)) {
    const file = join(folder, "hosts.toml");
    const text = await readTextIfExists(file);
    if (text !== undefined) return await fromHostsFile({ domain, file, folder, text });
    const tls = await dockerCertificates(folder);
    if (tls !== undefined) return [{ ...originsOf(domain, options)[0]!, tls }];
  }
  const mirrors = domain === "docker.io" ? options.mirrors : [];
  return [
    ...mirrors.flatMap((mirror) => mirrorEndpoints(mirror, domain, options)),
    ...originsOf(domain, options),
  ];
}

function configFolders(domain: string, configPath: string): string[] {
  if (configPath === "") return [];
  // HOST_PORT_ is how a port is spelt where file names take no colon.
  const names = [domain, domain.replace(/:(\d+)$/, "_$1_"), "_default"];
  return [...new Set(names)].map((name) => join(configPath, name));
}

// -- daemon.json ----------------------------------------------------------------------------------

function originsOf(domain: string, options: RegistryOptions): Endpoint[] {
  const host = defaultHosts[domain] ?? domain;
  const insecure = isInsecure(domain, options.insecure);
  const secure = endpoint(`https://${host}/v2`, { isOrigin: true, skipVerify: insecure });
  if (!insecure) return [secure];
  return [secure, endpoint(`http://${host}/v2`, { isOrigin: true, skipVerify: true })];
}

function mirrorEndpoints(mirror: string, domain: string, options: RegistryOptions): Endpoint[] {
  const base = mirror.includes("://") ? mirror : `https://${mirror}`;
  const url = parseUrl(base, `registry-mirrors: ${mirror}`);
  if (url.host === domain || url.host === defaultHosts[domain]) return []; // comes last anyway
  const skipVerify = isInsecure(url.host, options.insecure);
  const path = `${url.host}${url.pathname.replace(/\/+$/, "")}/v2`;
  const found = endpoint(`${url.protocol}//${path}`, { isOrigin: false, skipVerify });
  if (!skipVerify || url.protocol === "http:" || mirror.includes("://")) return [found];
  return [found, endpoint(`http://${path}`, { isOrigin: false, skipVerify })];
}

function endpoint(url: string, o: { isOrigin: boolean; skipVerify: boolean }): Endpoint {
  const tls = { skipVerify: o.skipVerify };
  return { url, isOrigin: o.isOrigin, canResolve: true, headers: {}, tls };
}

/** Loopback counts as insecure without being listed: nobody else can listen in. */
export function isInsecure(domain: string, insecure: string[]): boolean {
  const host = domain.replace(/:\d+$/, "");
  if (host === "localhost" || host === "[::1]" || inNetwork(host, "127.0.0.0/8")) return true;
  return insecure.some((entry) => {
    const name = entry.replace(/^https?:\/\//, "").replace(/\/+$/, "");
    return name === domain || name === host || inNetwork(host, name);
  });
}

function inNetwork(host: string, network: string): boolean {
  const [base, bits] = network.split("/");
  if (!isIPv4(host) || !isIPv4(base ?? "") || !/^\d{1,2}$/.test(bits ?? "")) return false;
  const shift = 32n - BigInt(bits!);
  if (shift < 0n) return false;
  return addressOf(host) >> shift === addressOf(base!) >> shift;
}

function addressOf(ipv4: string): bigint {
  return ipv4.split(".").reduce((sum, part) => (sum << 8n) | BigInt(part), 0n);
}

// -- hosts.toml -----------------------------------------------------------------------------------

type HostsText = { domain: string; file: string; folder: string; text: string };

async function fromHostsFile({ domain, file, folder, text }: HostsText): Promise<Endpoint[]> {
  let parsed: v.InferOutput<typeof HostsFile>;
  try {
    parsed = parseAs(HostsFile, parseToml(text), "the file");
  } catch (error) {
    throw new CriError("FAILED_PRECONDITION", `${file}: ${messageOf(error)}`, { cause: error });
  }
  const endpoints: Endpoint[] = [];
  for (const [url, host] of Object.entries(parsed.host)) {
    if (host.capabilities?.includes("pull") === false) continue;
    endpoints.push(await hostEndpoint({ url, host, folder, file, isOrigin: false }));
  }
  const server = parsed.server ?? `https://${defaultHosts[domain] ?? domain}`;
  const origin = await hostEndpoint({ url: server, host: parsed, folder, file, isOrigin: true });
  const same = endpoints.find(({ url }) => url === origin.url);
  if (same === undefined) endpoints.push(origin);
  else same.isOrigin = true;
  return endpoints;
}

type HostEntry = { url: string; host: Host; folder: string; file: string; isOrigin: boolean };

async function hostEndpoint(entry: HostEntry): Promise<Endpoint> {
  const { host, folder, file } = entry;
  const url = parseUrl(entry.url.includes("://") ? entry.url : `https://${entry.url}`, file);
  const path = url.pathname.replace(/\/+$/, "");
  const suffix = host.override_path || path.endsWith("/v2") ? path : `${path}/v2`;
  const read = async (name: string) => await readCertificate(folder, name, file);
  const ca = await Promise.all([host.ca ?? []].flat().map(read));
  const [cert, key] = clientPair(host.client);
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(host.header)) headers[name] = [value].flat().join(",");
  return {
    url: `${url.protocol}//${url.host}${suffix}`,
    isOrigin: entry.isOrigin,
    canResolve: host.capabilities?.includes("resolve") ?? true,
    headers,
    tls: {
      ...(ca.length > 0 && { ca }),
      ...(cert !== undefined && { cert: await read(cert), key: await read(key ?? cert) }),
      skipVerify: host.skip_verify,
    },
  };
}

/** "both.pem", ["both.pem"] or [["client.cert", "client.key"]]; the first pair serves. */
function clientPair(client: Host["client"]): [string?, string?] {
  const first = typeof client === "string" ? client : client?.[0];
  return typeof first === "string" ? [first] : [first?.[0], first?.[1]];
}

async function readCertificate(folder: string, name: string, file: string): Promise<string> {
  const path = isAbsolute(name) ? name : join(folder, name);
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    throw new CriError("FAILED_PRECONDITION", `${file} names ${path}: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

/** Docker's layout: *.crt are authorities, NAME.cert with NAME.key the client's. */
async function dockerCertificates(folder: string): Promise<Endpoint["tls"] | undefined> {
  const names = await readdir(folder).catch(() => [] as string[]);
  const read = async (name: string) => await readCertificate(folder, name, folder);
  const ca = await Promise.all(names.filter((name) => name.endsWith(".crt")).map(read));
  const certName = names.find((name) => name.endsWith(".cert"));
  if (ca.length === 0 && certName === undefined) return undefined;
  return {
    ...(ca.length > 0 && { ca }),
    ...(certName !== undefined && {
      cert: await read(certName),
      key: await read(certName.replace(/cert$/, "key")),
    }),
    skipVerify: false,
  };
}

function parseUrl(text: string, where: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol)) {
    throw new CriError("FAILED_PRECONDITION", `${where}: ${text} is not an http or https address`);
  }
  return url;
}
