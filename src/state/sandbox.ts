// Sandbox record: its schema and pure state transitions.
//
//   creating ──▶ ready ──▶ notready        creating ──▶ notready (a failed start that could not be
//                                                       rolled back: Stop and Remove finish it)
import * as v from "valibot";
import { checked, mapOf } from "../base/schema.ts";
import { runtime } from "../proto/messages.js";
import type { PodSandboxConfig } from "../proto/types.ts";
import { messageJson } from "./message_json.ts";
import { Digits } from "./digits.ts";
import type { StoreOptions } from "./store.ts";

const Pinned = v.object({ path: v.string(), inode: Digits });

/** One address of each family, as in iSulad's network settings. */
const addressFields = {
  IPAddress: v.optional(v.string(), ""),
  IPPrefixLen: v.optional(v.number(), 0),
  Gateway: v.optional(v.string(), ""),
  GlobalIPv6Address: v.optional(v.string(), ""),
  GlobalIPv6PrefixLen: v.optional(v.number(), 0),
  IPv6Gateway: v.optional(v.string(), ""),
  MacAddress: v.optional(v.string(), ""),
  LinkLocalIPv6Address: v.optional(v.string(), ""),
  LinkLocalIPv6PrefixLen: v.optional(v.number(), 0),
  /** The node's bridge, of a network that has one. */
  Bridge: v.optional(v.string(), ""),
  /** The name of CNI's cached result. */
  EndpointID: v.optional(v.string(), ""),
};

/** A network that the pod is attached to. */
const Network = v.object({ ...addressFields, InterfaceName: v.string() });
export type NetworkEndpoint = v.InferOutput<typeof Network>;

const PortMapping = v.object({
  hostPort: v.number(),
  containerPort: v.number(),
  protocol: v.string(),
  hostIP: v.string(),
});

const PortBinding = v.object({ HostIp: v.string(), HostPort: v.string() });

/** The pod's network, under iSulad's field names: the top-level fields are the default network's. */
const NetworkSettings = v.object({
  SandboxID: v.string(),
  /** The network namespace's file; empty in the host's network. */
  SandboxKey: v.string(),
  ...addressFields,
  /** All addresses of the default network, CRI's ip first. */
  IPs: v.optional(v.array(v.string()), []),
  CNIPorts: v.optional(v.array(PortMapping), []),
  /** The same in Docker's form, by "PORT/PROTOCOL" of the pod. */
  Ports: v.optional(mapOf(v.string(), v.array(PortBinding)), {}),
  /** True while the network is set up. */
  Activation: v.optional(v.boolean(), false),
  Networks: v.optional(mapOf(v.string(), Network), {}),
});
export type NetworkSettings = v.InferOutput<typeof NetworkSettings>;

export const SelinuxSchema = v.object({ process: v.string(), mount: v.string() });

/**
 * What runs a pod's containers, whatever daemon.json says since: an OCI runtime's command line, a shim, or a shim
 * that runs them in a guest of their own.
 */
export const RuntimeKindSchema = v.picklist(["oci", "shim", "guest"]);
export type RuntimeKind = v.InferOutput<typeof RuntimeKindSchema>;

type OfKind = { runtimeKind: RuntimeKind };

/** True for containers that run in a guest: they do not appear in the host's pids, cgroups and namespaces. */
export function isInGuest({ runtimeKind }: OfKind): boolean {
  return runtimeKind === "guest";
}

export function isByShim({ runtimeKind }: OfKind): boolean {
  return runtimeKind !== "oci";
}

const Phase = v.variant("phase", [
  v.object({ phase: v.literal("creating") }),
  v.object({ phase: v.literal("ready") }),
  v.object({ phase: v.literal("notready"), message: v.string() }),
]);

export type SandboxPhase = v.InferOutput<typeof Phase>;

const SandboxSchema = v.object({
  version: v.literal(1),
  id: v.string(),
  /** Reserved: pod name, namespace, uid and attempt. */
  name: v.string(),
  config: v.pipe(
    v.looseObject({}),
    v.transform((json): PodSandboxConfig => runtime.v1.PodSandboxConfig.fromObject(json)),
  ),
  runtimeHandler: v.string(),
  /** Absent in records of builds that had no shims. */
  runtimeKind: v.optional(RuntimeKindSchema, "oci"),
  /** Nanoseconds since the epoch. */
  createdAtNs: Digits,
  /** The boot whose namespaces, mounts and cgroups these are. */
  bootId: v.string(),
  networkMode: v.picklist(["cni", "host"]),
  networkSettings: NetworkSettings,
  namespaces: v.object({
    net: v.optional(Pinned),
    ipc: v.optional(Pinned),
    uts: v.optional(Pinned),
    user: v.optional(Pinned),
  }),
  cgroup: v.object({
    driver: v.picklist(["cgroupfs", "systemd"]),
    /** CRI's cgroup_parent; empty: a cgroup of the daemon's own for this pod. */
    parent: v.string(),
    /** The topmost cgroup that the daemon made for the pod, and has to remove. */
    made: v.optional(v.string()),
  }),
  /**
   * Before CNI ADD the plan, after it the result: the input of DEL (node/cni.ts CniAttachments). Not
   * checked, so that damage here does not lose the record: DEL falls back to its cache.
   */
  cni: v.optional(
    v.pipe(
      v.unknown(),
      v.transform((cni): unknown[] => (Array.isArray(cni) ? cni : [cni])), // as the first builds wrote it
    ),
  ),
  /** True after CNI DEL and unmounting, which Stop does once. */
  torndown: v.boolean(),
  /** A teardown or roll-back that has not succeeded yet: the sweep (recovery/sweep.ts) retries it. */
  ending: v.optional(v.picklist(["stop", "undo"])),
  /** SELinux labels, from which its containers' labels are derived. */
  selinux: v.optional(SelinuxSchema),
  /** The pause container, or the sandbox container of a guest; pid 0: not started yet. */
  pause: v.optional(v.object({ pid: v.number() })),
  phase: Phase,
});
export type Sandbox = v.InferOutput<typeof SandboxSchema>;

/** Joins parts by "_" and escapes it in them, so that no two lists of parts give the same name. */
export function reservedName(parts: (string | number)[]): string {
  const escaped = (char: string) => (char === "_" ? "%5F" : "%25");
  return parts.map((part) => String(part).replace(/[%_]/g, escaped)).join("_");
}

export function sandboxName(config: PodSandboxConfig): string {
  const { name, namespace, uid, attempt } = config.metadata ?? {};
  return reservedName([name ?? "", namespace ?? "", uid ?? "", attempt ?? 0]);
}

/** True if two sandboxes are attempts of one pod. */
export function isSamePod(a: PodSandboxConfig, b: PodSandboxConfig): boolean {
  const [one, other] = [a.metadata ?? {}, b.metadata ?? {}];
  return (["uid", "namespace", "name"] as const).every((key) => one[key] === other[key]);
}

export function noNetworkYet(SandboxID: string, SandboxKey: string): NetworkSettings {
  return checked(NetworkSettings, { SandboxID, SandboxKey });
}

export function ready(sandbox: Sandbox): Sandbox {
  return { ...sandbox, phase: { phase: "ready" } };
}

export function notReady(sandbox: Sandbox, message: string): Sandbox {
  if (sandbox.phase.phase === "notready") return sandbox;
  return { ...sandbox, phase: { phase: "notready", message } };
}

/** Makes the sandbox NOTREADY, and has the sweep tear it down even if no client calls StopPodSandbox. */
export function ending(sandbox: Sandbox, how: "stop" | "undo", message: string): Sandbox {
  if (sandbox.torndown || sandbox.ending === how) return notReady(sandbox, message);
  return { ...notReady(sandbox, message), ending: how };
}

/** Makes a sandbox whose folder was lost NOTREADY and has it undone, though parts may have been torn down before. */
export function abandoned(sandbox: Sandbox): Sandbox {
  return { ...notReady(sandbox, "its folder in the graph was lost"), ending: "undo" };
}

/** Records that the sandbox's network and namespaces are removed. */
export function tornDown(old: Sandbox): Sandbox {
  const { ending: _, ...sandbox } = old;
  const networkSettings = { ...sandbox.networkSettings, Activation: false };
  return { ...notReady(sandbox, "stopped"), networkSettings, torndown: true };
}

/** Explains a cgroup parent of the systemd driver under cgroupfs; undefined: it is none. */
export function foreignSlice({ driver, parent }: Pick<Sandbox["cgroup"], "driver" | "parent">) {
  if (driver !== "cgroupfs" || !/[^/]\.slice$/.test(parent)) return undefined;
  return `cgroup parent ${parent} is a slice of systemd, but the cgroup driver here is cgroupfs: its pods are in a cgroup of their own at the top, outside of the kubelet's limits; set "systemd-cgroup" and the kubelet's cgroupDriver alike`;
}

type Named = { metadata?: { name?: string | null; namespace?: string | null } | null };

/** Returns NAMESPACE/POD; undefined for a pod without a name. */
export function podName(config: Named | null | undefined): string | undefined {
  const { namespace, name } = config?.metadata ?? {};
  return name ? `${namespace}/${name}` : undefined;
}

/** Store options of sandbox records. */
export function sandboxRecords(folder: string, changes: string): StoreOptions<Sandbox> {
  return {
    kind: "sandbox",
    folder,
    changes,
    version: 1,
    toJson: (sandbox) => {
      const config = messageJson(runtime.v1.PodSandboxConfig, sandbox.config);
      return { ...sandbox, config };
    },
    fromJson: (json) => checked(SandboxSchema, json),
    isLeftover: ({ phase, ending }) => phase.phase === "creating" || ending === "undo",
  };
}
