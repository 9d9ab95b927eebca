// Parses CNI results of versions 0.1.0 to 1.1.0, converts them between versions and extracts pods' addresses.
import { isIP } from "node:net";
import * as v from "valibot";
import { CriError, messageOf } from "../base/errors.ts";
import { jsonValue, withoutNulls } from "../base/json.ts";
import { check } from "../base/schema.ts";

const Cidr = v.pipe(
  v.string(),
  v.check((text) => isIP(addressOf(text)) !== 0, "is not an IP address with prefix length"),
);
const Interface = v.looseObject({
  name: v.string(),
  mac: v.optional(v.string()),
  sandbox: v.optional(v.string()),
});
const Ip = v.looseObject({
  address: Cidr,
  gateway: v.optional(v.string()),
  interface: v.optional(v.pipe(v.number(), v.integer())),
});
const Routes = v.optional(v.array(v.looseObject({ dst: v.optional(v.string(), "") })));
const LegacyIp = v.looseObject({ ip: Cidr, gateway: v.optional(v.string()), routes: Routes });
const Result = v.looseObject({
  cniVersion: v.optional(v.string()),
  interfaces: v.optional(v.array(Interface)),
  ips: v.optional(v.array(Ip)),
  ip4: v.optional(LegacyIp), // until 0.2.0
  ip6: v.optional(LegacyIp),
  routes: Routes,
  dns: v.optional(v.unknown()),
});

/** A plugin's result, unchanged except that its version is always set. */
export type CniResult = v.InferOutput<typeof Result> & { cniVersion: string };

/**
 * Parses the stdout of ADD; a result without a version gets listVersion.
 * @throws CriError INTERNAL that names the plugin.
 */
export function parseResult(text: string, plugin: string, listVersion: string): CniResult {
  let json: unknown;
  try {
    json = withoutNulls(jsonValue(text));
  } catch (error) {
    const problem =
      text.trim() === "" ? "no result" : `a result that is not JSON: ${messageOf(error)}`;
    throw new CriError("INTERNAL", `CNI plugin ${plugin} printed ${problem}`, { cause: error });
  }
  const { success, output, issues } = check(Result, Array.isArray(json) ? undefined : json);
  if (success) return { ...output, cniVersion: output.cniVersion || listVersion };
  const problem = `${v.getDotPath(issues[0]) ?? "it"}: ${issues[0].message}`;
  throw new CriError("INTERNAL", `CNI plugin ${plugin} printed an invalid result: ${problem}`);
}

/** Converts a result to another version: a prevResult must have the version of the list. */
export function convertResult(result: CniResult, version: string): CniResult {
  if (result.cniVersion === version) return result;
  const modern = toModern(result);
  if (isLegacy(version)) return { ...toLegacy(modern), cniVersion: version };
  if (version.startsWith("0.3.") || version === "0.4.0") {
    const ips = modern.ips?.map((ip) => ({ version: familyOf(ip.address), ...ip }));
    return { ...modern, cniVersion: version, ips };
  }
  return { ...modern, cniVersion: version };
}

function isLegacy(version: string): boolean {
  return version === "0.1.0" || version === "0.2.0";
}

/** Converts a result to the fields of CNI 1.0.0 and later. */
export function toModern(result: CniResult): CniResult {
  const { ip4, ip6, ...rest } = result;
  if (!isLegacy(result.cniVersion)) {
    const ips = result.ips?.map((ip) => {
      const { version: _, ...others } = ip;
      return others;
    });
    return { ...rest, ips };
  }
  const both = [ip4, ip6].filter((ip) => ip !== undefined && ip !== null);
  const ips = both.map(({ ip: address, gateway }) => ({ address, gateway }));
  return { ...rest, ips, routes: both.flatMap((ip) => ip.routes ?? []) };
}

/** Converts a result to the fields of CNI 0.2.0 and earlier, which have one address of each family. */
function toLegacy(modern: CniResult): CniResult {
  const { ips, routes, interfaces: _, ...rest } = modern;
  const first = (family: string) => {
    const ip = ips?.find((one) => familyOf(one.address) === family);
    if (ip === undefined) return undefined;
    const ofFamily = routes?.filter((route) => familyOf(route.dst) === family) ?? [];
    return { ip: ip.address, gateway: ip.gateway, routes: ofFamily };
  };
  return { ...rest, ip4: first("4"), ip6: first("6") };
}

export type PodAddress = { ip: string; prefixLength: number; gateway: string };

/**
 * Returns the pod's addresses in the plugin's order: those of the requested interface and those without an
 * interface, or, if the result has neither, those of the other interfaces in the pod.
 */
export function podAddresses(result: CniResult, ifName: string): PodAddress[] {
  const { ips, interfaces } = toModern(result);
  const found = (ips ?? []).map(({ address, gateway = "", interface: index }) => {
    const prefixLength = Number(/\/(\d+)$/.exec(address)?.[1] ?? 0);
    return {
      at: interfaces?.[index ?? -1],
      pod: { ip: addressOf(address), prefixLength, gateway },
    };
  });
  const requested = found.filter(({ at }) => at === undefined || at.name === ifName);
  const chosen = requested.length > 0 ? requested : found.filter(({ at }) => at?.sandbox);
  return [...new Map(chosen.map(({ pod }) => [pod.ip, pod])).values()];
}

/** Returns the pod's addresses without prefix length and gateway. */
export function podIps(result: CniResult, ifName: string): string[] {
  return podAddresses(result, ifName).map(({ ip }) => ip);
}

/** Returns the MAC address of the pod's interface; "" when the result has none. */
export function podMac({ interfaces }: CniResult, ifName: string): string {
  return interfaces?.find(({ name, sandbox }) => name === ifName && sandbox)?.mac ?? "";
}

export function addressOf(cidr: string): string {
  return cidr.replace(/\/\d+$/, "");
}

function familyOf(cidr: string): string {
  return cidr.includes(":") ? "6" : "4";
}
