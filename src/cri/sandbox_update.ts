// UpdatePodSandboxResources, and the limits of pods whose cgroup is ours. A kubelet's pod cgroup is the
// kubelet's to limit: of that one the figures are kept, as other CRI servers do it.
import type { LinuxPodSandboxConfig, UpdatePodSandboxResourcesRequest } from "../proto/types.ts";
import { explicitResources, ociResources, summedResources } from "../spec/resources.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";
import { unready } from "./sandbox.ts";

/** @throws CriError NOT_FOUND, FAILED_PRECONDITION when the pod is not ready or the kernel refuses. */
export async function updatePodSandboxResources(
  context: Context,
  request: UpdatePodSandboxResourcesRequest,
): Promise<object> {
  const { id } = context.sandboxes.get(request.pod_sandbox_id ?? "");
  using _ = await context.sandboxes.lock(id);
  const sandbox = context.sandboxes.get(id);
  if (sandbox.phase.phase !== "ready") throw unready(sandbox);
  const linux: LinuxPodSandboxConfig = {
    ...sandbox.config.linux,
    ...(request.overhead ? { overhead: request.overhead } : {}),
    ...(request.resources ? { resources: request.resources } : {}),
  };
  const changed = { ...sandbox, config: { ...sandbox.config, linux } };
  await using undo = new AsyncDisposableStack();
  undo.defer(() => limitPod(context, sandbox));
  await context.nri?.updatePodSandbox(sandbox, request.overhead ?? {}, request.resources ?? {});
  limitPod(context, changed);
  await context.sandboxes.update(id, (old) => ({ ...old, config: changed.config }));
  undo.move();
  await context.nri?.updatedPodSandbox(context.sandboxes.get(id));
  return {};
}

/** Limits a pod's cgroup to what its config says, if that cgroup is ours. Throws as the driver does. */
export function limitPod(context: Context, sandbox: Sandbox): void {
  if (sandbox.cgroup.parent !== "") return;
  const { overhead, resources } = sandbox.config.linux ?? {};
  const limits = ociResources(summedResources(resources ?? {}, overhead ?? {}), [], context.host);
  const explicit = explicitResources(limits, context.host, {});
  context.cgroup.limitPod(sandbox.id, explicit);
}
