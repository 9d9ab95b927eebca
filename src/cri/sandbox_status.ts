// PodSandboxStatus and ListPodSandbox: converts sandbox records to CRI messages.
import { toLong } from "../base/int64.ts";
import { jsonText } from "../base/json.ts";
import { usableAttachments } from "../node/cni.ts";
import { unservedRequests } from "../node/cni_args.ts";
import { containerdResult } from "../node/containerd_result.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import { goJson } from "../state/message_json.ts";
import { podSpec, type OciSpec } from "../spec/oci.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { podSpecFile, specIfReadable } from "./bundle.ts";
import { hasCgroup } from "./cgroups.ts";
import { containerStatusMessage } from "./container_status.ts";
import type { Context } from "./context.ts";
import { listCalls, recordItems } from "./encoded_lists.ts";
import { runtimeType } from "./handler_info.ts";
import { selectSandboxes } from "./list_filters.ts";
import { containersOf, verifySandbox } from "./sandbox_lookup.ts";
import { sandboxInfo } from "./spec_inputs.ts";

const { PodSandboxState } = runtime.v1;

export async function podSandboxStatus(
  context: Context,
  request: cri.PodSandboxStatusRequest,
): Promise<cri.PodSandboxStatusResponse> {
  const verbose = request.verbose === true;
  const { id } = context.sandboxes.get(request.pod_sandbox_id ?? "");
  // Read before the rest, which is of one moment.
  const written = verbose ? await specIfReadable(podSpecFile(context, id)) : undefined;
  const sandbox = await verifySandbox(context, context.sandboxes.get(id));
  return {
    status: sandboxStatusMessage(sandbox),
    info: verbose ? { info: jsonText(info(context, sandbox, written)) } : {},
    containers_statuses: containersOf(context, sandbox.id).map(containerStatusMessage),
    timestamp: toLong(context.eventClock.next()),
  };
}

export function sandboxStatusMessage(sandbox: Sandbox): cri.PodSandboxStatus {
  const { networkSettings, config, torndown } = sandbox;
  const [first = "", ...others] = networkSettings.IPs;
  const options = config.linux?.security_context?.namespace_options;
  return {
    ...sandboxMessage(sandbox),
    network: {
      ip: torndown ? "" : first,
      additional_ips: torndown ? [] : others.map((ip) => ({ ip })),
    },
    linux: { namespaces: { options } },
  };
}

/** written: the spec of the pod's own container, if it has one. */
function info(context: Context, sandbox: Sandbox, written: OciSpec | undefined): object {
  const { networkSettings, namespaces, cgroup, phase, cni } = sandbox;
  const current = hasCgroup(context, sandbox)
    ? context.cgroup.podCgroup(cgroup.parent, sandbox.id)
    : undefined;
  const attachments = usableAttachments(cni ?? []);
  return {
    networkMode: sandbox.networkMode,
    networkSettings,
    networkWarnings: unservedRequests(attachments),
    namespaces,
    cgroup: { ...cgroup, paths: current?.paths ?? {} },
    phase,
    // Absent for a pod without a process: a script that kills pid 0 would kill its own process group.
    pid: sandbox.pause?.pid || undefined,
    selinux: sandbox.selinux ?? null,
    cniResult: containerdResult(attachments),
    runtimeHandler: sandbox.runtimeHandler,
    runtimeType: runtimeType(context, sandbox),
    config: goJson(runtime.v1.PodSandboxConfig, sandbox.config),
    overhead: limitsJson(sandbox.config.linux?.overhead),
    resources: limitsJson(sandbox.config.linux?.resources),
    runtimeSpec: written ?? podSpec(sandboxInfo(context, sandbox), current?.ociParent),
  };
}

/** Under containerd's names, as RunPodSandbox or the last UpdatePodSandboxResources has set them. */
function limitsJson(limits: cri.LinuxContainerResources | null | undefined): object | null {
  return limits ? goJson(runtime.v1.LinuxContainerResources, limits) : null;
}

export const { list: listPodSandbox, stream: streamPodSandboxes } = listCalls(
  (context, { filter }: cri.ListPodSandboxRequest) =>
    selectSandboxes(context, filter)
      .filter((sandbox) => !filter?.state || stateOf(sandbox) === (filter.state.state ?? 0))
      .map((sandbox) => itemOf(sandbox)),
);

const itemOf = recordItems(runtime.v1.PodSandbox, sandboxMessage);

function sandboxMessage(sandbox: Sandbox): cri.PodSandbox {
  const { id, config, createdAtNs, runtimeHandler } = sandbox;
  return {
    id,
    metadata: config.metadata,
    state: stateOf(sandbox),
    created_at: toLong(BigInt(createdAtNs)),
    labels: config.labels ?? {},
    annotations: config.annotations ?? {},
    runtime_handler: runtimeHandler,
  };
}

function stateOf({ phase }: Sandbox): runtime.v1.PodSandboxState {
  const { SANDBOX_READY, SANDBOX_NOTREADY } = PodSandboxState;
  return phase.phase === "ready" ? SANDBOX_READY : SANDBOX_NOTREADY;
}
