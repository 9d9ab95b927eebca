// Chooses the handler `untrusted` for pods with the annotation of untrusted workloads, by containerd's rules.
// KubeEdge's nodes have no RuntimeClass, and its documentation names this annotation instead.
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import type { PodSandboxConfig } from "../proto/types.ts";
import { namespaceOptions } from "../spec/namespace_options.ts";
import type { Context } from "./context.ts";

const untrustedAnnotation = "io.kubernetes.cri.untrusted-workload";
const untrustedHandler = "untrusted";

/**
 * Returns the handler of a new pod: the requested one, or `untrusted` for a pod with the annotation.
 * @throws CriError INVALID_ARGUMENT for an annotated pod with another handler or with namespaces of the node;
 * FAILED_PRECONDITION if no handler `untrusted` is configured.
 */
export function podHandlerName(
  { handlers }: Pick<Context, "handlers">,
  config: PodSandboxConfig,
  requested: string,
): string {
  if (config.annotations?.[untrustedAnnotation] !== "true") return requested;
  const pod = `a pod with the annotation ${untrustedAnnotation}: "true"`;
  if (requested !== "" && requested !== untrustedHandler) {
    const message = `runtime_handler: ${pod} runs on the handler ${quoted(untrustedHandler)}, not on ${quoted(requested)}: leave out its RuntimeClass, or the annotation`;
    throw new CriError("INVALID_ARGUMENT", message);
  }
  const { network, pid, ipc } = namespaceOptions(config);
  const shared = Object.entries({ network, pid, ipc }).filter(([, mode]) => mode === "node");
  if (shared.length > 0) {
    const names = shared.map(([kind]) => kind).join(", ");
    const message = `namespace_options: ${pod} must not use namespaces of the node (${names})`;
    throw new CriError("INVALID_ARGUMENT", message);
  }
  if (!handlers.has(untrustedHandler)) {
    const cure = `"cri-runtimes": {"${untrustedHandler}": "io.containerd.runsc.v1"}`;
    const message = `${pod} needs a runtime handler ${quoted(untrustedHandler)}: configure it in daemon.json, for example as gVisor by ${cure}`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  return untrustedHandler;
}
