// Encodes the options of a shim's Create: each shim accepts only the type that it knows.
import { encodeMessage } from "../base/protobuf.ts";
import { isRuncShim } from "../base/shim_program.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import { task } from "../proto/task.js";
import type { Any } from "../proto/task_types.ts";
import { isGvisor } from "./guests.ts";

/** Returns the options of a container; undefined: the shim's defaults. */
export function taskOptions({ shim, root, systemdCgroup }: RuntimeCommand): Any | undefined {
  if (shim === undefined) return undefined;
  if (isRuncShim(shim.type)) {
    const options = { root, ...shim.options, systemd_cgroup: systemdCgroup };
    const value = encodeMessage(task.RuncOptions, task.RuncOptions.fromObject(options));
    return { type_url: "containerd.runc.v1.Options", value };
  }
  if (shim.configPath === "") return undefined;
  // Most releases of gVisor refuse a configuration file of another type.
  const type_url = isGvisor(shim.type) ? "io.containerd.runsc.v1.options" : "";
  const value = encodeMessage(task.RuntimeOptions, { type_url, config_path: shim.configPath });
  return { type_url: "runtimeoptions.v1.Options", value };
}
