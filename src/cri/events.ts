// GetContainerEvents: publishes each commit of a sandbox or container to the connected subscribers. Earlier
// events are not replayed: a kubelet lists everything again when it connects.
import { CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import type { LogEnd } from "../history/pod_history.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerEventResponse, GetEventsRequest } from "../proto/types.ts";
import type { Container } from "../state/container.ts";
import { containerEvents, sandboxEvents } from "../state/events.ts";
import type { PodEvent, PodEventType } from "../state/events.ts";
import { podName, type Sandbox } from "../state/sandbox.ts";
import { containerStatusMessage } from "./container_status.ts";
import type { Call, Context } from "./context.ts";
import { containersOf } from "./sandbox_lookup.ts";
import { sandboxStatusMessage } from "./sandbox_status.ts";

const { ContainerEventType } = runtime.v1;

/** Publishes a container's change; called at its commit, before the next one. */
export function containerCommitted(
  context: Context,
  before: Container | undefined,
  after: Container | undefined,
): void {
  const { id, sandboxId } = (after ?? before)!;
  if (after?.phase.phase !== "running") context.sampler.forget(id);
  const hasExited = after?.phase.phase === "exited" && before?.phase.phase !== "exited";
  if (hasExited) context.nri?.stoppedContainer(after);
  if (before?.phase !== after?.phase) context.podMarkers?.changed(sandboxId);
  const sandbox = context.sandboxes.listed(sandboxId);
  context.history.containerCommitted(podName(sandbox?.config), before, after);
  publish(context, { id, sandbox, sandboxId }, containerEvents(before, after));
}

/** Adds to a pod's timeline that a container's log cannot be written, or can be again. */
export function logChanged(
  context: Context,
  id: string,
  change: { errno: string; path: string; end?: LogEnd },
): void {
  const container = context.containers.listed(id);
  const pod = podName(context.sandboxes.listed(container?.sandboxId ?? "")?.config);
  if (pod === undefined) return;
  const name = container?.config.metadata?.name ?? "";
  context.history.logFailed({ pod, container: name }, change);
}

/** Publishes a sandbox's change in the same way. */
export function sandboxCommitted(
  context: Context,
  before: Sandbox | undefined,
  after: Sandbox | undefined,
): void {
  const sandbox = (after ?? before)!;
  const { id } = sandbox;
  if (after?.phase.phase !== "ready") context.sampler.forget(id);
  context.podMarkers?.changed(id);
  context.history.sandboxCommitted(before, after);
  publish(context, { id, sandbox, sandboxId: id }, sandboxEvents(before, after));
}

function publish(
  context: Context,
  { id, sandbox, sandboxId }: { id: string; sandbox: Sandbox | undefined; sandboxId: string },
  types: PodEventType[],
): void {
  if (types.length === 0 || !context.events.isWatched) return;
  const containers = containersOf(context, sandboxId);
  for (const type of types) {
    const createdAtNs = context.eventClock.next();
    context.events.publish({ id, type, createdAtNs, sandbox, containers });
  }
}

export async function getContainerEvents(
  context: Context,
  _request: GetEventsRequest,
  call: Call,
  send: (event: ContainerEventResponse) => Promise<void>,
): Promise<void> {
  if (!context.config.enablePodEvents) {
    // On this code a kubelet falls back to polling at once.
    const message = "pod events are off: set enable-pod-events to true in daemon.json";
    throw new CriError("UNIMPLEMENTED", message);
  }
  using subscription = context.events.subscribe();
  await subscription.forward((event) => send(responseOf(event)), call.signal);
}

function responseOf({ id, type, createdAtNs, sandbox, containers }: PodEvent) {
  return {
    container_id: id,
    container_event_type: ContainerEventType[`CONTAINER_${type}_EVENT`],
    created_at: toLong(createdAtNs),
    pod_sandbox_status: sandbox === undefined ? undefined : sandboxStatusMessage(sandbox),
    containers_statuses: containers.map(containerStatusMessage),
  };
}
