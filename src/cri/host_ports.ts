// Finds ports of the node that a pod requests and that another pod or a program has already: the portmap plugin gives them
// to both, of which one then gets no traffic.
import { isIPv6 } from "node:net";
import { refuseOccupiedPorts } from "../base/annotations.ts";
import { CriError } from "../base/errors.ts";
import { portMappingsOf, type PortMapping } from "../node/cni_args.ts";
import { podName, type Sandbox } from "../state/sandbox.ts";
import { isPortTaken } from "../sys/tcp.ts";
import type { Context } from "./context.ts";
import { sandboxFields } from "./log_subject.ts";

/**
 * Warns of occupied ports: a kubelet's scheduler has allowed them, and its pod is to run.
 * @throws CriError FAILED_PRECONDITION if the pod has the annotation refuseOccupiedPorts.
 */
export function checkHostPorts(context: Context, sandbox: Sandbox): void {
  const mappings = portMappingsOf(sandbox.config);
  if (mappings.length === 0) return;
  const earlier = context.sandboxes.list().filter((other) => isEarlierUser(other, sandbox));
  for (const mapping of mappings) {
    const owner = ownerOf(mapping, earlier);
    if (owner === undefined) continue;
    const port = `${mapping.hostPort}/${mapping.protocol}`;
    const message = `port ${port} of the node belongs to ${owner}`;
    if (sandbox.config.annotations?.[refuseOccupiedPorts] === "true") {
      throw new CriError("FAILED_PRECONDITION", `${message}: choose another one`);
    }
    const effect = `${message}: one of them gets no traffic there`;
    context.log.warn(effect, sandboxFields(sandbox));
  }
}

function isEarlierUser(other: Sandbox, { id, createdAtNs }: Sandbox): boolean {
  const { phase, torndown, networkMode } = other;
  const hasPorts = networkMode === "cni" && phase.phase !== "notready" && !torndown;
  return hasPorts && other.id !== id && BigInt(other.createdAtNs) <= BigInt(createdAtNs);
}

function ownerOf(mapping: PortMapping, pods: readonly Sandbox[]): string | undefined {
  const pod = pods.find(({ config }) =>
    portMappingsOf(config).some((other) => isSamePort(mapping, other)),
  );
  if (pod !== undefined) return `pod ${podName(pod.config) ?? pod.id}`;
  const { protocol, hostPort, hostIP } = mapping;
  if (protocol === "sctp") return undefined;
  const address = hostIP === "" ? "0.0.0.0" : hostIP;
  return isPortTaken(protocol, address, hostPort) ? "a program of the node" : undefined;
}

function isSamePort(one: PortMapping, other: PortMapping): boolean {
  if (one.hostPort !== other.hostPort || one.protocol !== other.protocol) return false;
  return one.hostIP === other.hostIP || coversAll(one, other) || coversAll(other, one);
}

/** True if `one` is on all addresses of the other's family. */
function coversAll({ hostIP }: PortMapping, other: PortMapping): boolean {
  if (hostIP === "") return true;
  return hostIP === (isIPv6(other.hostIP) ? "::" : "0.0.0.0");
}
