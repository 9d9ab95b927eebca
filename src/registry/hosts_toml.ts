// Reads containerd's hosts.toml (its docs/hosts.md): a registry's mirrors with their certificates and
// headers. Every field that containerd reads means the same here.
import { durationMs } from "../base/duration.ts";
import { parse as parseToml } from "smol-toml";
import * as v from "valibot";
import { CriError, messageOf } from "../base/errors.ts";
import { BoundsError } from "../base/json_bounds.ts";
import { readTls, type CertificateFiles } from "./certificates.ts";
import { registryUrl, withoutScheme, type Endpoint, type Tls } from "./endpoint.ts";
import { mapOf, objectOf, parseAs } from "../base/schema.ts";

/** RFC 9110, 5.1 and 5.5: a line break in a value would begin another header. */
const HeaderName = v.pipe(v.string(), v.regex(/^[\w!#$%&'*+.^`|~-]+$/, "is not a header name"));
const HeaderLine = v.pipe(
  v.string(),
  v.regex(/^[\t\x20-\x7e\x80-\xff]*$/, "is not a header value"),
);

const FileName = v.pipe(v.string(), v.minLength(1, "is an empty file name"));
/** Certificate and key; with an empty key, the first file holds both. */
const Pair = v.strictTuple([FileName, v.string()]);

const HostFields = {
  capabilities: v.optional(
    v.array(
      v.pipe(v.string(), v.toLowerCase(), v.picklist(["pull", "resolve", "push", "referrers"])),
    ),
    [],
  ),
  ca: v.optional(v.union([FileName, v.array(FileName)]), []),
  client: v.optional(v.union([FileName, v.array(v.union([FileName, Pair]))]), []),
  skip_verify: v.optional(v.boolean()),
  override_path: v.optional(v.boolean(), false),
  header: v.optional(mapOf(HeaderName, v.union([HeaderLine, v.array(HeaderLine)])), {}),
  dial_timeout: v.optional(
    v.pipe(v.string(), v.transform(dialTimeoutMs), v.number("is not a duration such as 5s")),
  ),
};
const Host = objectOf(HostFields);
type Host = v.InferOutput<typeof Host>;
const HostsFile = v.object({
  ...HostFields,
  server: v.optional(v.string(), ""),
  host: v.optional(mapOf(v.string(), Host), {}),
});
type HostsFile = v.InferOutput<typeof HostsFile>;

/** The longest timer. */
const durationMsMax = 2 ** 31 - 1;

/** Parses dial_timeout into milliseconds; undefined for a text that is no duration. */
function dialTimeoutMs(text: string): number | undefined {
  const ms = durationMs(text);
  return ms === undefined ? undefined : Math.min(ms, durationMsMax);
}

/** Each pull reads it, and the parser takes up to a microsecond for a byte. */
const fileBytesMax = 64 << 10;

/** @throws CriError FAILED_PRECONDITION with the file name and the reason. */
export function parseHostsFile(text: string, file: string): HostsFile {
  try {
    if (text.length > fileBytesMax) throw new BoundsError(`is longer than ${fileBytesMax} bytes`);
    return parseAs(HostsFile, parseToml(text), "the file");
  } catch (error) {
    throw new CriError("FAILED_PRECONDITION", `${file}: ${messageOf(error)}`, { cause: error });
  }
}

/** origins: the registry's own endpoints, used if the file names no server. */
type HostsFolder = { file: string; folder: string; origins: Endpoint[] };

/** Returns the file's endpoints in order of preference. @throws CriError FAILED_PRECONDITION naming the wrong file. */
export async function endpointsOfHostsFile(parsed: HostsFile, o: HostsFolder): Promise<Endpoint[]> {
  const endpoints: Endpoint[] = [];
  for (const [address, host] of Object.entries(parsed.host)) {
    endpoints.push(...(await endpointsAt(address, host, { ...o, isOrigin: false })));
  }
  const added: Endpoint[] = [];
  for (const origin of await originsIn(parsed, o)) {
    // A registry without TLS may be listed although the default server has TLS.
    const same = endpoints.filter(({ url }) => withoutScheme(url) === withoutScheme(origin.url));
    for (const endpoint of same) endpoint.isOrigin = true;
    const { url, canPull, canResolve } = origin;
    const isListed = same.some(
      (one) => one.url === url && one.canPull >= canPull && one.canResolve >= canResolve,
    );
    if (!isListed) added.push(origin);
  }
  return [...endpoints, ...added].filter(({ canPull, canResolve }) => canPull || canResolve);
}

async function originsIn(parsed: HostsFile, o: HostsFolder): Promise<Endpoint[]> {
  if (parsed.server !== "")
    return await endpointsAt(parsed.server, parsed, { ...o, isOrigin: true });
  // As in containerd, a registry without a server line has all capabilities.
  const certificates = await certificatesOf(parsed, o);
  return o.origins.flatMap((origin) =>
    certificates.map((tls) => ({
      ...origin,
      headers: headersOf(parsed),
      tls: { ...tls, skipVerify: parsed.skip_verify ?? origin.tls.skipVerify },
      dialTimeoutMs: parsed.dial_timeout || undefined, // Go: 0 is no timeout
      from: o.file,
    })),
  );
}

/**
 * Returns one endpoint per client certificate. An http address with TLS settings is tried with TLS first,
 * as in containerd unless the port is 80: such a file was written for a registry that speaks either.
 */
async function endpointsAt(
  address: string,
  host: Host,
  o: HostsFolder & { isOrigin: boolean },
): Promise<Endpoint[]> {
  const url = registryUrl(address.includes("://") ? address : `https://${address}`, o.file);
  const path = url.pathname.replaceAll(/\/{2,}/g, "/").replace(/\/$/, "");
  const root = host.override_path || path.endsWith("/v2") ? path : `${path}/v2`;
  const certificates = await certificatesOf(host, o);
  const hasTls = host.skip_verify !== undefined || certificates.some(({ files }) => files?.length);
  // Tested on the text: URL drops the default port.
  const isPlain = /^http:\/\/[^/?#]*:80(?:[/?#]|$)/i.test(address);
  const isEither = url.protocol === "http:" && hasTls && !isPlain;
  const can = (capability: "pull" | "resolve") =>
    host.capabilities.length === 0 || host.capabilities.includes(capability);
  const endpoint = (protocol: string, tls: Tls): Endpoint => ({
    url: `${protocol}//${url.host}${root}`,
    isOrigin: o.isOrigin,
    canPull: can("pull"),
    canResolve: can("resolve"),
    headers: headersOf(host),
    tls: { ...tls, skipVerify: host.skip_verify ?? false },
    dialTimeoutMs: host.dial_timeout || undefined,
    from: o.file,
  });
  const secure = certificates.map((tls) => endpoint(isEither ? "https:" : url.protocol, tls));
  return isEither ? [...secure, endpoint("http:", { skipVerify: false })] : secure;
}

function headersOf({ header }: Host): Record<string, string> {
  return Object.fromEntries(
    Object.entries(header).map(([name, value]) => [name.toLowerCase(), [value].flat().join(", ")]),
  );
}

/**
 * Returns one Tls per client certificate, or one without a certificate. `client` is "both.pem", ["both.pem", …] or
 * [["client.cert", "client.key"], …].
 */
async function certificatesOf(host: Host, { file, folder }: HostsFolder): Promise<Tls[]> {
  const given = typeof host.client === "string" ? [host.client] : host.client;
  const clients = given.map((client): CertificateFiles["clients"][number] => {
    const [cert, key] = typeof client === "string" ? [client, ""] : client;
    return [cert, key || cert];
  });
  return readTls({ folder, by: file }, { authorities: [host.ca].flat(), clients });
}
