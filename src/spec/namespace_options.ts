// Parses the namespace options of a pod or container (CRI's NamespaceOption).
import { runtime } from "../proto/messages.js";
import type { NamespaceOption } from "../proto/types.ts";
import { invalid, unsupported } from "./refusals.ts";
import { userNamespace, type UserNamespace } from "./userns.ts";

const { NamespaceMode } = runtime.v1;

export type PidMode = "pod" | "container" | "node" | "target";

export type NamespaceOptions = {
  /** False for a config without namespace options. */
  isGiven: boolean;
  network: "pod" | "node";
  ipc: "pod" | "node";
  /**
   * For a pod, "pod" means one namespace for all its containers, which needs a pause container. POD is the enum's
   * zero value: a config without options, or with an unset mode, means "pod".
   */
  pid: PidMode;
  /** The container whose pid namespace to join; empty unless pid is "target". */
  targetId: string;
  /** undefined: the user namespace of the node. */
  user: UserNamespace | undefined;
  /** Set if the request mentions a user namespace at all. */
  hasUserOptions: boolean;
};

const pidModes = {
  [NamespaceMode.POD]: "pod",
  [NamespaceMode.CONTAINER]: "container",
  [NamespaceMode.NODE]: "node",
  [NamespaceMode.TARGET]: "target",
} as const;

/** PodSandboxConfig and ContainerConfig alike. */
type Config = {
  linux?: { security_context?: { namespace_options?: NamespaceOption | null } | null } | null;
};

/** @throws CriError INVALID_ARGUMENT for an unknown pid mode, or an unusable user namespace (userns.ts). */
export function namespaceOptions({ linux }: Config): NamespaceOptions {
  const options = linux?.security_context?.namespace_options;
  const sharing = (mode: number | null | undefined) =>
    mode === NamespaceMode.NODE ? "node" : "pod";
  const pid = pidModes[options?.pid ?? NamespaceMode.POD] as PidMode | undefined;
  if (pid === undefined) throw invalid(`unknown pid namespace mode ${String(options?.pid)}`);
  return {
    isGiven: Boolean(options),
    network: sharing(options?.network),
    ipc: sharing(options?.ipc),
    pid,
    targetId: pid === "target" ? (options?.target_id ?? "") : "",
    user: userNamespace(options),
    hasUserOptions: Boolean(options?.userns_options),
  };
}

/**
 * Returns whose pid namespace a container is in. POD in a pod that uses the node's means that one, as with containerd.
 * A container without options follows its pod, whatever mode that has. hasShared: the pod has a pid namespace of its
 * own; a pod without options that an earlier build made has none.
 * @throws CriError FAILED_PRECONDITION for POD in a pod that cannot share; INVALID_ARGUMENT as namespaceOptions() does.
 */
export function containerPidMode(
  config: Config,
  pod: { config: Config; hasShared: boolean },
): PidMode {
  const { pid, isGiven } = namespaceOptions(config);
  if (pid !== "pod" || pod.hasShared) return pid;
  if (namespaceOptions(pod.config).pid === "node") return "node";
  if (!isGiven) return "container";
  throw unsupported(
    "pid mode POD: this pod has no pid namespace to share: make the pod with namespace_options.pid POD, too, or ask for CONTAINER",
  );
}

/**
 * Refuses a pod that wants a user namespace of its own and shares the node's pid or ipc namespace: the
 * kernel would not let it mount /proc or mqueue.
 * @throws CriError INVALID_ARGUMENT
 */
export function checkPodNamespaces(options: NamespaceOptions): void {
  if (options.user === undefined) return;
  for (const kind of ["pid", "ipc"] as const) {
    if (options[kind] !== "node") continue;
    const why = `mode is POD and namespace_options.${kind} is NODE: /proc or mqueue cannot be mounted`;
    throw invalid(`namespace_options.userns_options: ${why}`);
  }
}
