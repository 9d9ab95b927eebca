// StopPodSandbox and RemovePodSandbox, and AbandonNetwork of isulad.v1.
import { step } from "../base/failpoints.ts";
import type {
  AbandonNetworkRequest,
  RemovePodSandboxRequest,
  StopPodSandboxRequest,
} from "../proto/types.ts";
import { ending, tornDown } from "../state/sandbox.ts";
import { endStart, killContainer, removeContainerRecord } from "./container_end.ts";
import type { Call, Context } from "./context.ts";
import { sandboxFields } from "./log_subject.ts";
import { containersOf } from "./sandbox_lookup.ts";
import { releaseSandbox, tearDownSandbox } from "./sandbox_teardown.ts";

export async function stopPodSandbox(
  context: Context,
  request: StopPodSandboxRequest,
  call: Call,
): Promise<object> {
  const sandbox = context.sandboxes.find(request.pod_sandbox_id ?? "");
  if (sandbox !== undefined) await stop(context, sandbox.id, call.signal);
  return {};
}

function stop(context: Context, id: string, signal: AbortSignal): Promise<void> {
  return context.ending.join(`stop sandbox ${id}`, signal, () => stopAlone(context, id, signal));
}

/** Stops the containers, then tears the pod down; a repeated stop resumes where the last one failed. */
async function stopAlone(context: Context, id: string, signal: AbortSignal): Promise<void> {
  using _ = await context.sandboxes.lock(id);
  const sandbox = await context.sandboxes.update(id, (old) => ending(old, "stop", "stopped"), {
    happened: true,
  });
  if (sandbox === undefined) return;
  await Promise.all(
    containersOf(context, id).map(async (container) => {
      // A start under way holds the lock; no other begins, as the sandbox is not ready.
      await endStart(context, container.id, signal);
      using _ = await context.containers.lock(container.id);
      await killContainer(context, container.id, signal);
    }),
  );
  if (sandbox.torndown) return;
  await tearDownSandbox(context, sandbox, signal);
  await step("sandbox-torndown", () => context.sandboxes.update(id, tornDown, { happened: true }));
  context.log.info("sandbox stopped", sandboxFields(sandbox));
}

/** @throws CriError NOT_FOUND, FAILED_PRECONDITION unless a CNI DEL of the pod has failed. */
export async function abandonNetwork(
  context: Context,
  request: AbandonNetworkRequest,
  { signal }: Call,
): Promise<object> {
  const { id } = context.sandboxes.get(request.pod_sandbox_id ?? "");
  // Under the lock no DEL is under way, which could record a failure of its own.
  using _ = await context.sandboxes.lock(id, signal);
  await context.cni.abandon(id);
  return {};
}

export async function removePodSandbox(
  context: Context,
  request: RemovePodSandboxRequest,
  call: Call,
): Promise<object> {
  const sandbox = context.sandboxes.find(request.pod_sandbox_id ?? "");
  if (sandbox === undefined) return {};
  const { id } = sandbox;
  const removal = () => remove(context, id, call.signal);
  await context.ending.join(`remove sandbox ${id}`, call.signal, removal);
  return {};
}

async function remove(context: Context, id: string, signal: AbortSignal): Promise<void> {
  // Even a NOTREADY sandbox can still hold a network namespace.
  await stop(context, id, signal);
  using _ = await context.sandboxes.lock(id);
  const sandbox = context.sandboxes.listed(id);
  if (sandbox === undefined) return;
  for (const container of containersOf(context, id)) {
    await removeContainerRecord(context, container.id, signal);
  }
  await releaseSandbox(context, sandbox, signal);
  context.log.info("sandbox removed", sandboxFields(sandbox));
}
