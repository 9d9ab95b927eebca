// What a pod passes to CNI plugins: CNI_ARGS, capability arguments, and each plugin's input.
import { CriError } from "../base/errors.ts";
import type { PodSandboxConfig } from "../proto/types.ts";
import type { ConfList, PluginConf } from "./cni_conf.ts";
import { convertResult, type CniResult } from "./cni_result.ts";

export type CniPortMapping = {
  hostPort: number;
  containerPort: number;
  protocol: "tcp" | "udp" | "sctp";
  hostIP: string;
};

/** A pod as CNI sees it. */
export type CniPod = {
  id: string;
  name: string;
  namespace: string;
  uid: string;
  netnsPath: string;
  portMappings: CniPortMapping[];
  annotations: Record<string, string>;
  dns?: { servers: string[]; searches: string[]; options: string[] };
  /** Pod cgroup under its hierarchy's root, with a leading slash. */
  cgroupPath?: string;
};

/** What ADD was called with beside the list; DEL gets the same. */
export type CniRuntimeConf = {
  args: [string, string][];
  capabilityArgs: Record<string, unknown>;
};

const protocols = ["tcp", "udp", "sctp"] as const;

/** The CNI side of a CRI sandbox config. */
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
    portMappings: (config.port_mappings ?? []).map(portMappingOf).filter((p) => p.hostPort > 0),
    annotations: config.annotations ?? {},
    dns: dns
      ? { servers: dns.servers ?? [], searches: dns.searches ?? [], options: dns.options ?? [] }
      : undefined,
  };
}

function portMappingOf(
  mapping: NonNullable<PodSandboxConfig["port_mappings"]>[number],
): CniPortMapping {
  const protocol = protocols[mapping.protocol ?? 0];
  const [containerPort, hostPort] = [mapping.container_port ?? 0, mapping.host_port ?? 0];
  if (protocol === undefined) {
    throw new CriError("INVALID_ARGUMENT", `port_mappings: unknown protocol ${mapping.protocol}`);
  }
  if (hostPort > 0 && (hostPort > 65535 || containerPort < 1 || containerPort > 65535)) {
    throw new CriError(
      "INVALID_ARGUMENT",
      `port_mappings: ${hostPort} to ${containerPort}: ports are 1 to 65535`,
    );
  }
  return { hostPort, containerPort, protocol, hostIP: mapping.host_ip ?? "" };
}

/** @throws CriError INVALID_ARGUMENT for metadata that CNI_ARGS cannot carry or a bad bandwidth. */
export function runtimeConfOf(pod: CniPod): CniRuntimeConf {
  const args: [string, string][] = [
    ["IgnoreUnknown", "1"],
    ["K8S_POD_NAMESPACE", pod.namespace],
    ["K8S_POD_NAME", pod.name],
    ["K8S_POD_INFRA_CONTAINER_ID", pod.id],
    ["K8S_POD_UID", pod.uid],
  ];
  for (const [key, value] of args) {
    // CNI_ARGS has no escapes: a ';' in a name would add arguments of the pod's choice.
    if (/[;=\0]/.test(value)) {
      throw new CriError("INVALID_ARGUMENT", `${key} "${value}" may not hold ';' or '=' for CNI`);
    }
  }
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

/** The burst that the bandwidth plugin takes as no limit of its own. */
const unlimitedBurst = 2 ** 31 - 1;

function bandwidthOf(annotations: Record<string, string>): Record<string, number> | undefined {
  const out: Record<string, number> = {};
  for (const way of ["ingress", "egress"]) {
    const key = `kubernetes.io/${way}-bandwidth`;
    const text = annotations[key];
    if (text === undefined) continue;
    const rate = quantity(text);
    if (rate === undefined || rate < 1e3 || rate > 1e15) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `annotation ${key} "${text}": a quantity of bits a second from 1k to 1P is needed, like 10M`,
      );
    }
    out[`${way}Rate`] = Math.ceil(rate);
    out[`${way}Burst`] = unlimitedBurst;
  }
  return Object.keys(out).length > 0 ? out : undefined;
}

const decimal = ["", "k", "M", "G", "T", "P", "E"];

/** A Kubernetes quantity ("10M", "1.5Gi", "2e6") as a number. */
function quantity(text: string): number | undefined {
  const match = /^(\d+\.?\d*|\.\d+)(?:([kMGTPE]?)|([KMGTPE])i|[eE]([+-]?\d{1,2}))$/.exec(text);
  if (match === null) return undefined;
  const number = Number(match[1]);
  if (match[4] !== undefined) return number * 10 ** Number(match[4]);
  if (match[3] !== undefined) {
    return number * 1024 ** decimal.indexOf(match[3] === "K" ? "k" : match[3]);
  }
  return number * 1000 ** decimal.indexOf(match[2] ?? "");
}

/**
 * The input of one plugin of a list: its configuration with the list's name and version, the
 * capability arguments that it asked for, and what the plugin before it gave.
 */
export function pluginInput(
  list: ConfList,
  plugin: PluginConf,
  runtime: { capabilityArgs: Record<string, unknown>; prevResult?: CniResult },
): Record<string, unknown> {
  const { capabilities, ...conf } = plugin;
  const asked = Object.entries(runtime.capabilityArgs).filter(([name]) => capabilities?.[name]);
  return {
    ...conf,
    name: list.name,
    cniVersion: list.cniVersion,
    ...(asked.length > 0 ? { runtimeConfig: Object.fromEntries(asked) } : {}),
    ...(runtime.prevResult === undefined
      ? {}
      : { prevResult: convertResult(runtime.prevResult, list.cniVersion) }),
  };
}
