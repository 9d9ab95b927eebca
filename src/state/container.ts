// Container record: its schema and pure state transitions.
//
//   creating ──▶ created ──▶ running ──▶ exited     created ──▶ exited (reason StartError)
//
// A container in phase creating is not listed.
import { join } from "node:path";
import * as v from "valibot";
import { checked, mapOf } from "../base/schema.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerConfig, LinuxContainerResources, PodSandboxConfig } from "../proto/types.ts";
import { isSignal } from "../sys/signals.ts";
import { messageJson } from "./message_json.ts";
import { reservedName, RuntimeKindSchema, sandboxName, SelinuxSchema } from "./sandbox.ts";
import { Digits } from "./digits.ts";
import type { Exit } from "./exit.ts";
import type { StoreOptions } from "./store.ts";

const Phase = v.variant("phase", [
  v.object({ phase: v.literal("creating") }),
  v.object({ phase: v.literal("created") }),
  v.object({
    phase: v.literal("running"),
    pid: v.pipe(v.number(), v.integer()),
    startedAtNs: Digits,
  }),
  v.object({
    phase: v.literal("exited"),
    /** "0" when it never ran. */
    startedAtNs: Digits,
    finishedAtNs: Digits,
    exitCode: v.pipe(v.number(), v.integer()),
    /** CRI: Completed, Error, OOMKilled; containerd's StartError and Unknown. */
    reason: v.picklist(["Completed", "Error", "OOMKilled", "StartError", "Unknown"]),
    message: v.string(),
  }),
]);
export type ContainerPhase = v.InferOutput<typeof Phase>;

const Id = v.pipe(v.number(), v.safeInteger());

const ContainerSchema = v.object({
  version: v.literal(1),
  id: v.string(),
  /** The reserved name: container name and attempt, and the pod's whole name. */
  name: v.string(),
  sandboxId: v.string(),
  config: v.pipe(
    v.looseObject({}),
    v.transform((json): ContainerConfig => runtime.v1.ContainerConfig.fromObject(json)),
  ),
  image: v.object({
    /** The image's id, CRI's image_id. */
    id: v.string(),
    /** The name that the user requested, for CRI's image.image. */
    name: v.string(),
    /** The digest reference, CRI's image_ref. */
    ref: v.string(),
  }),
  runtimeHandler: v.string(),
  /** Absent in records of builds that had no shims. */
  runtimeKind: v.optional(RuntimeKindSchema, "oci"),
  createdAtNs: Digits,
  /** The driver that made its cgroup; absent in records of earlier builds. */
  cgroupDriver: v.optional(v.picklist(["cgroupfs", "systemd"])),
  bootId: v.string(),
  /** Absolute; empty: output is discarded. */
  logPath: v.string(),
  /** A signal's name, "SIGTERM". */
  stopSignal: v.pipe(v.string(), v.check(isSignal, "no signal's name")),
  /** Of the container's first process. */
  user: v.object({ uid: Id, gid: Id, groups: v.array(Id) }),
  /** SELinux labels; a privileged container runs without the process label. */
  selinux: v.optional(SelinuxSchema),
  /** OCI's cgroupsPath, the driver's or an NRI plugin's; absent, of earlier builds: the driver's. */
  cgroupsPath: v.optional(v.string()),
  /** Annotations of the last update that had any, passed to NRI plugins. */
  updateAnnotations: v.optional(mapOf(v.string(), v.string())),
  /** Why an NRI plugin evicts it, in the plugin's words. */
  evicted: v.optional(v.string()),
  /** Classes of block I/O and RDT that NRI plugins chose. */
  classes: v.optional(v.object({ blockio: v.optional(v.string()), rdt: v.optional(v.string()) })),
  /** An update is under way: the bundle's limits from before (cri/container_update.ts), as JSON. */
  updating: v.optional(v.string()),
  phase: Phase,
});
export type Container = v.InferOutput<typeof ContainerSchema>;

export function containerName(config: ContainerConfig, pod: PodSandboxConfig): string {
  const { name, attempt } = config.metadata ?? {};
  return `${reservedName([name ?? "", attempt ?? 0])}_${sandboxName(pod)}`;
}

/** CRI: log_path is relative to the pod's log_directory; "" (no log) if either is missing. */
export function logPath({ log_path: path }: ContainerConfig, pod: PodSandboxConfig): string {
  return pod.log_directory && path ? join(pod.log_directory, path) : "";
}

export function created(
  container: Container,
  user: { uid: number; gid: number; additionalGids?: number[] },
): Container {
  const { uid, gid, additionalGids: groups = [] } = user;
  return { ...container, user: { uid, gid, groups }, phase: { phase: "created" } };
}

export function running(container: Container, pid: number, startedAtNs: string): Container {
  // A short-lived container may have ended before its start was recorded.
  const { phase } = container;
  if (phase.phase === "exited") return container;
  const isKnown =
    phase.phase === "running" && phase.pid === pid && phase.startedAtNs === startedAtNs;
  return isKnown ? container : { ...container, phase: { phase: "running", pid, startedAtNs } };
}

export function updateBegun(container: Container, before: string): Container {
  return { ...container, updating: before };
}

/** Ends the update, with these resources. */
export function updateEnded(
  container: Container,
  resources: LinuxContainerResources,
  annotations?: Record<string, string> | null,
): Container {
  const { updating: _, ...rest } = container;
  const { config } = container;
  const updated = { ...rest, config: { ...config, linux: { ...config.linux, resources } } };
  return annotations ? { ...updated, updateAnnotations: annotations } : updated;
}

/** Records why the container is about to be stopped; one that has exited ended for another reason. */
export function evicted(container: Container, reason: string): Container {
  return container.phase.phase === "exited" ? container : { ...container, evicted: reason };
}

/** Records a start that was cut off before its record: a reported exit proves that the container ran. */
export function startSeen(container: Container, pid: number, startedAtNs: string): Container {
  return container.phase.phase === "created" ? running(container, pid, startedAtNs) : container;
}

export function exited(container: Container, exit: Exit): Container {
  const { phase } = container;
  if (phase.phase === "exited") return container;
  const { known, oomKilled, lostLogBytes, exitCode, startedAtNs, finishedAtNs } = exit;
  const messages: string[] = [];
  if (container.evicted !== undefined) messages.push(evictionMessage(container.evicted));
  if (!known) messages.push(unknownExit);
  if (exit.problem !== undefined) messages.push(exit.problem);
  if (known && oomKilled) messages.push(oomMessage(exit));
  if (lostLogBytes > 0)
    messages.push(
      `${lostLogBytes} bytes of its last output were lost: the log could not be written`,
    );
  const end = { startedAtNs, finishedAtNs, exitCode, reason: reasonOf(exit) };
  return { ...container, phase: { phase: "exited", ...end, message: messages.join("; ") } };
}

function evictionMessage(reason: string): string {
  return `an NRI plugin evicted the container: ${reason || "without a reason"}`;
}

const unknownExit =
  "the exit code is not known: the process ended while no monitor could wait for it";

function oomMessage({ oomLimit }: Exit): string {
  const limits = {
    container: "the container's memory limit was reached",
    pod: "the pod's memory limit was reached",
    node: "the node, or what its pods may have together, was out of memory",
  };
  const whose = oomLimit === undefined ? "" : `: ${limits[oomLimit]}`;
  return `the kernel killed a process of the container for memory${whose}`;
}

function reasonOf(exit: Exit): "Completed" | "Error" | "OOMKilled" | "Unknown" {
  if (!exit.known) return "Unknown";
  if (exit.oomKilled) return "OOMKilled";
  return exit.exitCode === 0 ? "Completed" : "Error";
}

/** EXITED after a failed start; exit code 128 is containerd's for that. */
export function startFailed(container: Container, message: string, atNs: string): Container {
  const end = {
    startedAtNs: "0",
    finishedAtNs: atNs,
    exitCode: 128,
    reason: "StartError",
  } as const;
  return { ...container, phase: { phase: "exited", ...end, message } };
}

/**
 * Makes a container EXITED without a known exit code: the node was rebooted, or the monitor's record is lost. Applies
 * to a created container, too, since after a power loss its record may be older than its start.
 */
export function lost(container: Container, message: string, atNs: string): Container {
  const { phase } = container;
  if (phase.phase !== "running" && phase.phase !== "created") return container;
  const startedAtNs = phase.phase === "running" ? phase.startedAtNs : "0";
  const end = { startedAtNs, finishedAtNs: atNs, exitCode: 255, reason: "Unknown" } as const;
  return { ...container, phase: { phase: "exited", ...end, message } };
}

/** Store options of container records. */
export function containerRecords(folder: string, changes: string): StoreOptions<Container> {
  return {
    kind: "container",
    folder,
    changes,
    version: 1,
    toJson: (container) => {
      const config = messageJson(runtime.v1.ContainerConfig, container.config);
      return { ...container, config };
    },
    fromJson: (json) => checked(ContainerSchema, json),
    isLeftover: ({ phase }) => phase.phase === "creating",
  };
}
