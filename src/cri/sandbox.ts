// The RPCs on a sandbox that was made: status, lists, Stop, Remove.
import { CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { step } from "../base/failpoints.ts";
import { jsonText } from "../base/json.ts";
import { isPinned } from "../node/namespaces.ts";
import { runtime } from "../proto/messages.js";
import type {
  ListPodSandboxRequest,
  PodSandbox,
  PodSandboxFilter,
  PodSandboxStatus,
  PodSandboxStatusRequest,
  PodSandboxStatusResponse,
  RemovePodSandboxRequest,
  StopPodSandboxRequest,
  StreamPodSandboxesRequest,
} from "../proto/types.ts";
import type { Container } from "../state/container.ts";
import { messageJson } from "../state/message_json.ts";
import { ending, notReady, tornDown, type Sandbox } from "../state/sandbox.ts";
import { removeContainerRecord, killContainer } from "./container_end.ts";
import { statusOf as containerStatusOf } from "./container_status.ts";
import type { Call, Context } from "./context.ts";
import { hasCgroup } from "./facts.ts";
import { selectSandboxes } from "./filter.ts";
import { Encoded, recordItems, sendItems } from "./lists.ts";
import { release, tearDown } from "./sandbox_teardown.ts";

const { PodSandboxState } = runtime.v1;

export async function stopPodSandbox(
  context: Context,
  request: StopPodSandboxRequest,
  call: Call,
): Promise<object> {
  const found = context.sandboxes.find(request.pod_sandbox_id ?? "");
  if (found !== undefined) await stop(context, found.id, call.signal);
  return {};
}

/** Ends the pod, or joins the call that does. */
function stop(context: Context, id: string, signal: AbortSignal): Promise<void> {
  return context.ending.join(`stop sandbox ${id}`, signal, () => stopAlone(context, id, signal));
}

/** Ends the containers, then the pod's own parts; a repeated stop goes on where the last one failed. */
async function stopAlone(context: Context, id: string, signal: AbortSignal): Promise<void> {
  using _ = await context.sandboxes.lock(id);
  const sandbox = await context.sandboxes.update(id, (old) => ending(old, "stop", "stopped"), {
    happened: true,
  });
  if (sandbox === undefined) return;
  await Promise.all(
    containersOf(context, id).map(async (container) => {
      // A start under way holds the lock; none begins any more, for the sandbox is not ready.
      using _ = await context.containers.lock(container.id);
      await killContainer(context, container.id, signal);
    }),
  );
  if (sandbox.torndown) return;
  await tearDown(context, sandbox, signal);
  await step("sandbox-torndown", () => context.sandboxes.update(id, tornDown, { happened: true }));
  context.log.info("sandbox stopped", { sandbox: id, name: sandbox.name });
}

export async function removePodSandbox(
  context: Context,
  request: RemovePodSandboxRequest,
  call: Call,
): Promise<object> {
  const found = context.sandboxes.find(request.pod_sandbox_id ?? "");
  if (found !== undefined) {
    const { id } = found;
    const { signal } = call;
    await context.ending.join(`remove sandbox ${id}`, signal, () => remove(context, id, signal));
  }
  return {};
}

async function remove(context: Context, id: string, signal: AbortSignal): Promise<void> {
  // A NOTREADY sandbox can hold a network namespace: always stop first.
  await stop(context, id, signal);
  using _ = await context.sandboxes.lock(id);
  const sandbox = context.sandboxes.listed(id);
  if (sandbox === undefined) return;
  for (const container of containersOf(context, id)) {
    await removeContainerRecord(context, container.id, signal);
  }
  await release(context, sandbox, signal);
  context.log.info("sandbox removed", { sandbox: id, name: sandbox.name });
}

export function containersOf(context: Context, sandboxId: string): Container[] {
  return context.containers.list().filter((container) => container.sandboxId === sandboxId);
}

/** The refusal of a call that only a ready sandbox takes. */
export function unready({ id, phase }: Sandbox): CriError {
  const why = phase.phase === "notready" ? ` (${phase.message})` : "";
  const message = `sandbox ${id} is not ready${why}: remove it and run another one`;
  return new CriError("FAILED_PRECONDITION", message);
}

/** A sandbox without a process is ready as long as its namespace file holds what was pinned there. */
export async function checkSandbox(context: Context, sandbox: Sandbox): Promise<Sandbox> {
  if (sandbox.phase.phase !== "ready") return sandbox;
  for (const pinned of Object.values(sandbox.namespaces)) {
    if (pinned === undefined || isPinned(pinned.path, BigInt(pinned.inode))) continue;
    const message = `the namespace ${pinned.path} is gone`;
    context.log.warn(message, { sandbox: sandbox.id });
    return (await context.sandboxes.update(sandbox.id, (old) => notReady(old, message))) ?? sandbox;
  }
  return sandbox;
}

export async function podSandboxStatus(
  context: Context,
  request: PodSandboxStatusRequest,
): Promise<PodSandboxStatusResponse> {
  const sandbox = await checkSandbox(context, context.sandboxes.get(request.pod_sandbox_id ?? ""));
  return {
    status: statusOf(sandbox),
    info: request.verbose === true ? { info: jsonText(info(context, sandbox)) } : {},
    containers_statuses: containersOf(context, sandbox.id).map(containerStatusOf),
    timestamp: toLong(context.eventClock.next()),
  };
}

export function statusOf(sandbox: Sandbox): PodSandboxStatus {
  const { networkSettings, config, torndown } = sandbox;
  const [first = "", ...others] = networkSettings.IPs;
  const options = config.linux?.security_context?.namespace_options;
  return {
    ...summary(sandbox),
    network: {
      ip: torndown ? "" : first,
      additional_ips: torndown ? [] : others.map((ip) => ({ ip })),
    },
    linux: { namespaces: { options } },
  };
}

function info(context: Context, sandbox: Sandbox): object {
  const { networkSettings, namespaces, cgroup, phase, cni } = sandbox;
  return {
    networkMode: sandbox.networkMode,
    networkSettings,
    namespaces,
    cgroup: {
      ...cgroup,
      paths: hasCgroup(context, sandbox)
        ? context.cgroup.podCgroup(cgroup.parent, sandbox.id).paths
        : {},
    },
    phase,
    pid: sandbox.pause?.pid ?? 0,
    selinux: sandbox.selinux ?? null,
    cniResult: (cni?.[0] as { result?: unknown } | undefined)?.result ?? null,
    config: messageJson(runtime.v1.PodSandboxConfig, sandbox.config, "names"),
  };
}

export function listPodSandbox(context: Context, request: ListPodSandboxRequest): Encoded {
  return new Encoded(items(context, request.filter));
}

export function streamPodSandboxes(
  context: Context,
  request: StreamPodSandboxesRequest,
  call: Call,
  send: (batch: Encoded) => Promise<void>,
): Promise<void> {
  return sendItems(items(context, request.filter), call, send);
}

function items(context: Context, filter: PodSandboxFilter | null | undefined): Uint8Array[] {
  return selectSandboxes(context, filter)
    .filter((sandbox) => !filter?.state || stateOf(sandbox) === (filter.state.state ?? 0))
    .map(itemOf);
}

const itemOf = recordItems(runtime.v1.PodSandbox, summary);

/** What status and list agree on. */
function summary(sandbox: Sandbox): PodSandbox {
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
