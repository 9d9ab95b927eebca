// Reads the features of the runtime behind a shim: by the shim's `-info` (containerd 1.7 or newer), else of the
// OCI runtime that runc's shim calls.
import { jsonValue } from "../base/json.ts";
import { isRuncShim } from "../base/shim_program.ts";
import { encodeMessage } from "../base/protobuf.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import { ociProbe, type FeatureProbe, type Features } from "../node/runtime_features.ts";
import { task } from "../proto/task.js";
import { run } from "../sys/run.ts";
import { taskOptions } from "./task_options.ts";

export function shimProbe(command: RuntimeCommand): FeatureProbe {
  const { path, shim } = command;
  const binary = isRuncShim(shim!.type) ? shim!.options["binary_name"] : undefined;
  const behind = typeof binary === "string" ? [binary] : [];
  const read = async (signal: AbortSignal) => {
    const features = await infoFeatures(command, signal);
    if (features !== undefined || behind.length === 0) return features;
    return ociProbe(behind).read(signal);
  };
  return { programs: [path, ...behind], call: `shim: ${path} -info`, read };
}

/** Returns undefined for a shim without `-info`, or without features in its answer. */
async function infoFeatures(
  command: RuntimeCommand,
  signal: AbortSignal,
): Promise<Features | undefined> {
  const options = taskOptions(command);
  const input = options === undefined ? "" : encodeMessage(task.Any, options);
  const result = await run([command.path, "-info"], { signal, input, encoding: "latin1" });
  if (result.exitCode !== 0) return undefined;
  const { features } = task.RuntimeInfo.decode(Buffer.from(result.stdout, "latin1"));
  if (!features?.value?.length) return undefined;
  return jsonValue(new TextDecoder().decode(features.value)) as Features;
}
