// Checks the registries of certs.d: their files, connections, certificates, and the clock by their answers.
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { URL } from "node:url";
import type { Config } from "../base/config.ts";
import { messageOf } from "../base/errors.ts";
import type { Endpoint } from "../registry/endpoint.ts";
import { proxyFor } from "../registry/proxy.ts";
import { resolveEndpoints } from "../registry/resolve_endpoints.ts";
import { existsAt, type Finding, forbidden, type Node, type State } from "./node.ts";

/** Checks each registry of certs.d: its files can be read, and one of its addresses answers with a valid certificate. */
export async function checkRegistries(node: Node, config: Config): Promise<Finding[]> {
  const { registryConfigPath: folder } = config;
  if (folder === "" || !existsAt(node, folder)) return [];
  const names = readdirSync(join(node.root, folder)).filter(
    (name) => name !== "_default" && isFolder(join(node.root, folder, name)),
  );
  return (await Promise.all(names.sort().map((name) => checkRegistry(node, config, name)))).flat();
}

/** A pull looks for folders only: other files in certs.d, such as an editor's, are no registries. */
function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}

const dayMs = 24 * 3_600_000;
/** A certificate that ends within this time is reported. */
const renewMs = 30 * dayMs;
/** Clocks of this difference are wrong: certificates and tokens are rejected from some minutes on. */
const skewMs = 5 * 60_000;

async function checkRegistry(node: Node, config: Config, folder: string): Promise<Finding[]> {
  const domain = folder.replace(/_(\d+)_$/, ":$1");
  const check = `registry ${domain}`;
  try {
    const endpoints = await resolveEndpoints(domain, {
      mirrors: config.registryMirrors,
      insecure: config.insecureRegistries,
      configPath: join(node.root, config.registryConfigPath),
      authFile: "",
      progressTimeoutMs: config.pullProgressTimeoutMs,
    });
    const mend = `isulad-ts registry check ${domain}/IMAGE tells more`;
    return (await judged(node, endpoints)).map((finding) =>
      finding.state === "ok" ? { check, ...finding } : { check, mend, ...finding },
    );
  } catch (error) {
    const mend = "correct the file";
    const fault: Finding = { check, state: "fail", detail: messageOf(error), mend };
    return [forbidden(node, check, error) ?? fault];
  }
}

type Judged = Omit<Finding, "check"> & { check?: string };

/** Asks the addresses in the order of a pull until one answers: what failed before it is a warning. */
async function judged(node: Node, endpoints: readonly Endpoint[]): Promise<Judged[]> {
  const failures: string[] = [];
  const failed = (state: State) => ({ state, detail: failures.join("; ") });
  const asked = new Set<string>();
  for (const endpoint of endpoints) {
    const { url } = endpoint;
    if (asked.has(url)) continue;
    asked.add(url);
    const failure = await failureOf(node, url);
    if (failure !== undefined) {
      failures.push(failure);
      continue;
    }
    const { problem, dateMs, certificateEndsMs } = await node.askRegistry(endpoint);
    const skewed = skew(node, url, dateMs);
    if (problem !== undefined) {
      failures.push(`${url}: ${problem}`);
      if (skewed.length > 0) return [...skewed, failed("fail")];
      continue;
    }
    if (failures.length > 0) return [...skewed, failed("warn")];
    const ends = ending(node, url, certificateEndsMs);
    return [...skewed, ends ?? { state: "ok", detail: `${url} is reachable` }];
  }
  return [failed("fail")];
}

function ending(
  { nowMs }: Node,
  url: string,
  endsMs = Number.POSITIVE_INFINITY,
): Judged | undefined {
  if (endsMs - nowMs > renewMs) return undefined;
  const days = Math.max(Math.floor((endsMs - nowMs) / dayMs), 0);
  const date = new Date(endsMs).toISOString().slice(0, 10);
  const detail = `${url}: its certificate ends in ${days} days, on ${date}; pulls fail from then on`;
  return { state: "warn", detail, mend: "have it renewed" };
}

function skew({ nowMs }: Node, url: string, dateMs = nowMs): Judged[] {
  if (Math.abs(dateMs - nowMs) <= skewMs) return [];
  const [here, there] = [nowMs, dateMs].map((ms) => new Date(ms).toISOString());
  const detail = `it is ${here} here and ${there} at ${url}: one of the clocks is wrong`;
  return [{ check: "clock", state: "fail", detail, mend: "timedatectl set-ntp true, or date -s" }];
}

/** Returns why an address, or the proxy to it, accepts no connection. */
async function failureOf(node: Node, url: string): Promise<string | undefined> {
  const proxy = proxyFor(new URL(url));
  const { hostname, port, protocol } = new URL(proxy?.url ?? url);
  try {
    const host = hostname.replace(/^\[(.*)\]$/, "$1");
    await node.dial(host, Number(port) || (protocol === "https:" ? 443 : 80));
    return undefined;
  } catch (error) {
    const through = proxy === undefined ? "" : ` by the proxy ${proxy.about}`;
    return `${url}${through} is not reachable: ${messageOf(error)}`;
  }
}
