// A pod sandbox as it is recorded, and the pure steps of its life:
//
//   creating ──▶ ready ──▶ notready        creating ──▶ notready (a failed start that could not be
//                                                       undone: Stop and Remove finish it)
import * as v from "valibot";
import { runtime } from "../proto/messages.js";
import type { PodSandboxConfig } from "../proto/types.ts";
import { messageJson } from "./message_json.ts";
import { Digits, type StoreOptions } from "./store.ts";

const Pinned = v.object({ path: v.string(), inode: Digits });

/** One address of each family, as iSulad's network settings have them. */
const addressFields = {
  IPAddress: v.optional(v.string(), ""),
  IPPrefixLen: v.optional(v.number(), 0),
  Gateway: v.optional(v.string(), ""),
  GlobalIPv6Address: v.optional(v.string(), ""),
  GlobalIPv6PrefixLen: v.optional(v.number(), 0),
  IPv6Gateway: v.optional(v.string(), ""),
  MacAddress: v.optional(v.string(), ""),
};

/** A network that the pod is attached to, by the name of its list. */
const Network = v.object({ ...addressFields, InterfaceName: v.string() });
export type NetworkEndpoint = v.InferOutput<typeof Network>;

const PortMapping = v.object({
  hostPort: v.number(),
  containerPort: v.number(),
  protocol: v.string(),
  hostIP: v.string(),
});

/** What the pod's network is known by, under iSulad's names: its own fields are the default network's. */
const NetworkSettings = v.object({
  SandboxID: v.string(),
  /** The network namespace's file; empty in the host's network. */
  SandboxKey: v.string(),
  ...addressFields,
  /** All of the default network, CRI's ip first. */
  IPs: v.optional(v.array(v.string()), []),
  CNIPorts: v.optional(v.array(PortMapping), []),
  /** Whether the network is set up. */
  Activation: v.optional(v.boolean(), false),
  Networks: v.optional(v.record(v.string(), Network), {}),
});
export type NetworkSettings = v.InferOutput<typeof NetworkSettings>;

export const SelinuxSchema = v.object({ process: v.string(), mount: v.string() });

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
    /** What CRI gave; empty: one of the daemon's own for this pod. */
    parent: v.string(),
    /** The topmost cgroup that was made for the pod, ours to remove. */
    made: v.optional(v.string()),
  }),
  /**
   * The plan before CNI ADD, its result after: what DEL needs (node/cni.ts CniAttachments). Damage in it
   * is no reason to lose the rest: DEL has a cache for what it cannot use.
   */
  cni: v.optional(
    v.pipe(
      v.unknown(),
      v.transform((cni): unknown[] => (Array.isArray(cni) ? cni : [cni])), // one of the first builds
    ),
  ),
  /** CNI DEL, unmounting: what Stop does once. */
  torndown: v.boolean(),
  /** What was begun and has failed so far: recovery and zombies.ts go on with it. */
  ending: v.optional(v.picklist(["stop", "undo"])),
  /** Its SELinux labels, where it has them; its containers' are made of them. */
  selinux: v.optional(SelinuxSchema),
  /** The first process of the pid namespace that the pod shares, where it does; 0: not started yet. */
  pause: v.optional(v.object({ pid: v.number() })),
  phase: Phase,
});
export type Sandbox = v.InferOutput<typeof SandboxSchema>;

/** Parts joined by "_", which is escaped in them: no two lists of parts give one name. */
export function reservedName(parts: (string | number)[]): string {
  return parts.map((part) => String(part).replace(/[%_]/g, encodeChar)).join("_");
}

function encodeChar(char: string): string {
  return char === "_" ? "%5F" : "%25";
}

export function sandboxName(config: PodSandboxConfig): string {
  const { name, namespace, uid, attempt } = config.metadata ?? {};
  return reservedName([name ?? "", namespace ?? "", uid ?? "", attempt ?? 0]);
}

/** Whether two sandboxes are attempts of one pod. */
export function isSamePod(a: PodSandboxConfig, b: PodSandboxConfig): boolean {
  const [one, other] = [a.metadata ?? {}, b.metadata ?? {}];
  return (["uid", "namespace", "name"] as const).every((key) => one[key] === other[key]);
}

export function noNetworkYet(SandboxID: string, SandboxKey: string): NetworkSettings {
  return v.parse(NetworkSettings, { SandboxID, SandboxKey });
}

export function ready(sandbox: Sandbox): Sandbox {
  return { ...sandbox, phase: { phase: "ready" } };
}

export function notReady(sandbox: Sandbox, message: string): Sandbox {
  if (sandbox.phase.phase === "notready") return sandbox;
  return { ...sandbox, phase: { phase: "notready", message } };
}

/** It is to be torn down, whoever asks for it or not. */
export function ending(sandbox: Sandbox, how: "stop" | "undo", message: string): Sandbox {
  if (sandbox.torndown || sandbox.ending === how) return notReady(sandbox, message);
  return { ...notReady(sandbox, message), ending: how };
}

/** Its folder was lost: all that is left of it is to go, though some of it may have been torn down. */
export function abandoned(sandbox: Sandbox): Sandbox {
  return { ...notReady(sandbox, "its folder in the graph was lost"), ending: "undo" };
}

/** Its network and its namespaces are gone. */
export function tornDown(old: Sandbox): Sandbox {
  const { ending: _, ...sandbox } = old;
  const networkSettings = { ...sandbox.networkSettings, Activation: false };
  return { ...notReady(sandbox, "stopped"), networkSettings, torndown: true };
}

/** How the store keeps them. */
export function sandboxRecords(folder: string, changes: string): StoreOptions<Sandbox> {
  return {
    kind: "sandbox",
    folder,
    changes,
    version: 1,
    toJson: (sandbox) => {
      const config = messageJson(runtime.v1.PodSandboxConfig, sandbox.config, "numbers");
      return { ...sandbox, config };
    },
    fromJson: (json) => v.parse(SandboxSchema, json),
  };
}
