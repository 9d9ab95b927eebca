// Builds what CNI plugins get for a pod: CNI_ARGS, capability arguments, and each plugin's input.
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import type { PodSandboxConfig } from "../proto/types.ts";
import type { CniAttachment } from "./cni_cache.ts";
import type { ConfList, PluginConf } from "./cni_conf.ts";
import { convertResult, type CniResult } from "./cni_result.ts";

const protocols = ["tcp", "udp", "sctp"] as const;

export type PortMapping = {
  hostPort: number;
  containerPort: number;
  protocol: (typeof protocols)[number];
  hostIP: string;
};

/** The properties of a pod that CNI plugins get. */
export type CniPod = {
  id: string;
  name: string;
  namespace: string;
  uid: string;
  netnsPath: string;
  portMappings: PortMapping[];
  annotations: Record<string, string>;
  dns?: { servers: string[]; searches: string[]; options: string[] };
  /** The pod's cgroup below the hierarchy's root, with a leading slash. */
  cgroupPath?: string;
};

/** The arguments of ADD apart from the list; DEL gets the same ones. */
type RuntimeConf = { args: [string, string][]; capabilityArgs: Record<string, unknown> };

/** Converts a CRI sandbox config. @throws CriError INVALID_ARGUMENT for an invalid port mapping. */
export function cniPodOf(
  config: PodSandboxConfig,
  own: { id: string; netnsPath: string; cgroupPath?: string },
): CniPod {
  const dns = config.dns_config;
  return {
    ...own,
    name: config.metadata?.name ?? "",
    namespace: config.metadata?.namespace ?? "",
    uid: config.metadata?.uid ?? "",
    portMappings: portMappingsOf(config),
    annotations: config.annotations ?? {},
    dns: dns
      ? { servers: dns.servers ?? [], searches: dns.searches ?? [], options: dns.options ?? [] }
      : undefined,
  };
}

/** Returns the ports of the node that a pod requests. @throws CriError INVALID_ARGUMENT for an invalid one. */
export function portMappingsOf({ port_mappings }: PodSandboxConfig): PortMapping[] {
  return (port_mappings ?? []).map(portMappingOf).filter(({ hostPort }) => hostPort > 0);
}

function portMappingOf(
  mapping: NonNullable<PodSandboxConfig["port_mappings"]>[number],
): PortMapping {
  const protocol = protocols[mapping.protocol ?? 0];
  const [containerPort, hostPort] = [mapping.container_port ?? 0, mapping.host_port ?? 0];
  if (protocol === undefined) {
    throw new CriError("INVALID_ARGUMENT", `port_mappings: unknown protocol ${mapping.protocol}`);
  }
  if (hostPort > 0 && (hostPort > 65535 || containerPort < 1 || containerPort > 65535)) {
    const problem = `${hostPort} to ${containerPort}: ports must be 1 to 65535`;
    throw new CriError("INVALID_ARGUMENT", `port_mappings: ${problem}`);
  }
  return { hostPort, containerPort, protocol, hostIP: mapping.host_ip ?? "" };
}

/** @throws CriError INVALID_ARGUMENT for metadata that CNI_ARGS cannot carry or an invalid bandwidth. */
export function runtimeConfOf(pod: CniPod): RuntimeConf {
  const args: [string, string][] = [
    ["IgnoreUnknown", "1"],
    ["K8S_POD_NAMESPACE", pod.namespace],
    ["K8S_POD_NAME", pod.name],
    ["K8S_POD_INFRA_CONTAINER_ID", pod.id],
    ["K8S_POD_UID", pod.uid],
  ];
  for (const [key, value] of args) {
    // CNI_ARGS has no escaping: a ';' in a name would let the pod inject arguments.
    if (/[;=\0]/.test(value)) {
      const problem = "must not contain ';' or '=': CNI_ARGS cannot escape them";
      throw new CriError("INVALID_ARGUMENT", `${key} "${value}" ${problem}`);
    }
  }
  args.push(...extensionArgs(pod.annotations).args);
  const capabilityArgs: Record<string, unknown> = {
    "io.kubernetes.cri.pod-annotations": pod.annotations,
  };
  if (pod.portMappings.length > 0) capabilityArgs["portMappings"] = pod.portMappings;
  const bandwidth = bandwidthOf(pod.annotations);
  if (bandwidth !== undefined) capabilityArgs["bandwidth"] = bandwidth;
  if (pod.dns !== undefined) capabilityArgs["dns"] = pod.dns;
  if (pod.cgroupPath !== undefined) capabilityArgs["cgroupPath"] = pod.cgroupPath;
  return { args, capabilityArgs };
}

/** iSulad's annotation for plugins of several networks, and its argument, whose spelling is iSulad's. */
const networksExtension = "extension.network.kubernetes.io/cni";
const networksArg = "CNI_MUTLINET_EXTENSION";
/** Each annotation of iSulad with this prefix has one further argument: KEY=VALUE. */
const argsExtension = "extension.network.kubernetes.io/cniargs/";
/** The names that runtimeConfOf() sets itself. A pod must not be able to pass for another one. */
const ownArg = /^(IgnoreUnknown|K8S_.*)$/i;

/** Returns the arguments of iSulad's annotations, and why others are left out. */
export function extensionArgs(annotations: Record<string, string>): {
  args: [string, string][];
  problems: string[];
} {
  const args = new Map<string, string>();
  const problems: string[] = [];
  for (const [key, text] of Object.entries(annotations)) {
    const isList = key === networksExtension;
    if (!isList && !key.startsWith(argsExtension)) continue;
    const [, name, value] =
      (isList ? [text, networksArg, text] : /^([^=]+)=([^=]*)$/.exec(text)) ?? [];
    const problem = problemOf(name, value, args);
    if (problem === undefined) args.set(name!, value!);
    else problems.push(`annotation ${key} ${quoted(text)} is ignored: ${problem}`);
  }
  return { args: [...args], problems };
}

function problemOf(
  name: string | undefined,
  value: string | undefined,
  earlier: ReadonlyMap<string, string>,
): string | undefined {
  if (name === undefined || value === undefined) return "it must be KEY=VALUE";
  // CNI_ARGS has no escaping.
  if (/[;\p{Cc}]/u.test(name + value)) return "';' and control characters separate CNI_ARGS";
  if (ownArg.test(name)) return `${name} is not a pod's to set`;
  return earlier.has(name) ? `another annotation sets ${name}` : undefined;
}

/** The bandwidth plugin's maximum, which it treats as unlimited. */
const unlimitedBurst = 2 ** 31 - 1;

function bandwidthOf(annotations: Record<string, string>): Record<string, number> | undefined {
  const out: Record<string, number> = {};
  for (const direction of ["ingress", "egress"]) {
    const key = `kubernetes.io/${direction}-bandwidth`;
    const text = annotations[key];
    if (text === undefined) continue;
    const rate = quantity(text);
    if (rate === undefined || rate < 1e3 || rate > 1e15) {
      const problem = "must be 1k to 1P bits per second, such as 10M";
      throw new CriError("INVALID_ARGUMENT", `annotation ${key} "${text}": ${problem}`);
    }
    out[`${direction}Rate`] = Math.ceil(rate);
    out[`${direction}Burst`] = unlimitedBurst;
  }
  return Object.keys(out).length > 0 ? out : undefined;
}

const prefixes = ["", "K", "M", "G", "T", "P", "E"];

/** Parses a Kubernetes quantity ("10M", "1.5Gi", "2e6"). */
function quantity(text: string): number | undefined {
  const match = /^(\d+(?:\.\d*)?|\.\d+)(?:([kMGTPE]?)|([KMGTPE])i|[eE]([+-]?\d{1,2}))$/.exec(text);
  if (match === null) return undefined;
  const [, number, decimal = "", binary, exponent] = match;
  if (exponent !== undefined) return Number(number) * 10 ** Number(exponent);
  if (binary !== undefined) return Number(number) * 1024 ** prefixes.indexOf(binary);
  return Number(number) * 1000 ** prefixes.indexOf(decimal.toUpperCase());
}

/**
 * Returns the stdin of one plugin: its configuration with the list's name and version, the capability
 * arguments that it declares, and the previous plugin's result.
 */
export function pluginInput(
  list: ConfList,
  plugin: PluginConf,
  runtime: { capabilityArgs: Record<string, unknown>; prevResult?: CniResult },
): Record<string, unknown> {
  const { capabilities, ...conf } = plugin;
  const { capabilityArgs, prevResult } = runtime;
  const declared = Object.entries(capabilityArgs).filter(([name]) => capabilities?.[name]);
  return {
    ...conf,
    name: list.name,
    cniVersion: list.cniVersion,
    ...(declared.length > 0 ? { runtimeConfig: Object.fromEntries(declared) } : {}),
    ...(prevResult && { prevResult: convertResult(prevResult, list.cniVersion) }),
  };
}

/** What pods request by a capability that a list's plugins may lack. */
const requests = { portMappings: "its host ports", bandwidth: "its bandwidth" };

/**
 * Returns one sentence for each request that no plugin declares to handle. A network may handle it without a
 * capability, as Cilium does, so it is no error.
 */
export function unservedRequests(
  attachments: readonly Pick<CniAttachment, "confList" | "capabilityArgs">[],
): string[] {
  return Object.entries(requests).flatMap(([capability, what]) => {
    const asked = attachments.filter(({ capabilityArgs }) => capability in capabilityArgs);
    const plugins = asked.flatMap(({ confList }) => confList.plugins);
    if (asked.length === 0 || plugins.some(({ capabilities }) => capabilities?.[capability])) {
      return [];
    }
    const names = asked.map(({ confList }) => confList.name).join(", ");
    return `${what} may have no effect: no plugin of ${names} has the capability "${capability}"`;
  });
}
