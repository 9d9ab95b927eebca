// UpdatePodSandboxResources: records new limits and applies them to pod cgroups that this daemon owns. For
// pod cgroups of a kubelet, which sets their limits itself, it only records them, as other CRI servers do.
import type { LinuxPodSandboxConfig, UpdatePodSandboxResourcesRequest } from "../proto/types.ts";
import { withoutNegativeLimits } from "../spec/resources.ts";
import { limitPod, requirePodRoom } from "./cgroups.ts";
import type { Call, Context } from "./context.ts";
import { requireReady } from "./preconditions.ts";

/** @throws CriError NOT_FOUND, FAILED_PRECONDITION when the pod is not ready or the kernel refuses. */
export async function updatePodSandboxResources(
  context: Context,
  request: UpdatePodSandboxResourcesRequest,
  { signal }: Call,
): Promise<object> {
  const { id } = context.sandboxes.get(request.pod_sandbox_id ?? "");
  using held = new DisposableStack();
  held.use(await context.nri?.enter(signal));
  held.use(await context.sandboxes.lock(id, signal));
  const sandbox = requireReady(context.sandboxes.get(id));
  const { overhead } = request;
  const resources = request.resources && withoutNegativeLimits(request.resources);
  const linux: LinuxPodSandboxConfig = {
    ...sandbox.config.linux,
    ...(overhead ? { overhead } : {}),
    ...(resources ? { resources } : {}),
  };
  const changed = { ...sandbox, config: { ...sandbox.config, linux } };
  requirePodRoom(context, sandbox, changed);
  await using undo = new AsyncDisposableStack();
  undo.defer(() => limitPod(context, sandbox));
  await context.nri?.updatePodSandbox(sandbox, overhead ?? {}, resources ?? {});
  await limitPod(context, changed);
  await context.sandboxes.update(id, (old) => ({ ...old, config: changed.config }));
  undo.move();
  await context.nri?.updatedPodSandbox(context.sandboxes.get(id));
  return {};
}
