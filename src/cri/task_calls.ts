// Calls the shims of running containers, through the monitor. Loaded only where there are shims.
import { encodeMessage } from "../base/protobuf.ts";
import type { TaskRequest } from "../monitor/protocol.ts";
import { task } from "../proto/task.js";
import { ociJson, type OciResources } from "../spec/oci_types.ts";
import type { CgroupUsage } from "../stats/cgroup_usage.ts";
import { usageOfTask } from "../stats/task_metrics.ts";
import type { Context } from "./context.ts";

/** Limit for statistics, which must not wait for a shim that is stuck. */
const statsMs = 2_000;

/** Returns the usage that a shim reports. @throws CriError NOT_FOUND, UNAVAILABLE, DEADLINE_EXCEEDED, or the shim's. */
export async function taskUsage(context: Context, id: string): Promise<CgroupUsage | undefined> {
  const payload = encodeMessage(task.StatsRequest, { id });
  return usageOfTask(await call(context, { id, method: "Stats", timeoutMs: statsMs }, payload));
}

/** Sets the limits in `resources`; absent ones stay. @throws CriError, also the shim's own. */
export async function updateTask(
  context: Context,
  id: string,
  resources: Partial<OciResources>,
): Promise<void> {
  const value = Buffer.from(ociJson(resources));
  const type_url = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";
  const payload = encodeMessage(task.UpdateTaskRequest, { id, resources: { type_url, value } });
  const timeoutMs = context.config.runtimeTimeoutMs;
  await call(context, { id, method: "Update", timeoutMs }, payload);
}

/** Writes criu's images of a container of runc's shim; it continues to run. @throws CriError as updateTask(). */
export async function checkpointTask(
  context: Context,
  id: string,
  { images, work, timeoutMs }: { images: string; work: string; timeoutMs: number },
): Promise<void> {
  const value = encodeMessage(task.CheckpointOptions, {
    open_tcp: true,
    file_locks: true,
    image_path: images,
    work_path: work,
  });
  const options = { type_url: "containerd.runc.v1.CheckpointOptions", value };
  const payload = encodeMessage(task.CheckpointTaskRequest, { id, path: images, options });
  await call(context, { id, method: "Checkpoint", timeoutMs }, payload);
}

async function call(
  { monitor }: Context,
  request: Omit<TaskRequest, "payload">,
  payload: Buffer,
): Promise<Buffer> {
  return (await monitor.call("task", { ...request, payload: payload.toString("base64") })).body;
}
