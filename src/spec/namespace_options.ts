// Parses the namespace options of a pod or container (CRI's NamespaceOption).
import { runtime } from "../proto/messages.js";
import type { NamespaceOption } from "../proto/types.ts";
import { invalid } from "./refusals.ts";
import { userNamespace, type UserNamespace } from "./userns.ts";

const { NamespaceMode } = runtime.v1;

export type NamespaceOptions = {
  network: "pod" | "node";
  ipc: "pod" | "node";
  /**
   * For a pod, "pod" means one namespace for all its containers, which needs a pause container. undefined: the
   * config has no namespace options; POD is the enum's zero value, so an unset mode alone means "pod".
   */
  pid: "pod" | "container" | "node" | "target" | undefined;
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
  const pid = options ? pidModes[options.pid ?? NamespaceMode.POD] : undefined;
  if (options && pid === undefined) {
    throw invalid(`unknown pid namespace mode ${String(options.pid)}`);
  }
  return {
    network: sharing(options?.network),
    ipc: sharing(options?.ipc),
    pid,
    targetId: pid === "target" ? (options?.target_id ?? "") : "",
    user: userNamespace(options),
    hasUserOptions: Boolean(options?.userns_options),
  };
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
