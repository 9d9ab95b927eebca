// Kinds of values of daemon.json's keys runtimes and cri-runtimes. config_runtimes.ts resolves them.
import * as v from "valibot";
import { absolutePath, flag, integer, kind, text, type Kind } from "./config_values.ts";
import { mapOf } from "./schema.ts";
import { isRuncShim, isShimType } from "./shim_program.ts";

/** A runtime handler; absent fields are not configured. */
export type RuntimeEntry = {
  /** The executable of the OCI runtime or of the shim; a bare name if it is not installed. */
  path: string;
  runtimeArgs: string[];
  /** For an OCI runtime: its options, by their names in containerd.runc.v1.Options. */
  options?: ShimEntry["options"];
  /** Present for a shim v2 runtime. */
  shim?: ShimEntry;
  /** A JSON file with the base OCI spec of containers. */
  baseRuntimeSpec?: string;
  /** Patterns of the pod's and container's annotations that are passed to the runtime. */
  podAnnotations?: string[];
  containerAnnotations?: string[];
  privilegedWithoutHostDevices?: boolean;
  privilegedAllDevicesAllowed?: boolean;
  cniConfDir?: string;
  cniMaxConfNum?: number;
};

export type ShimOption = string | number | boolean;

export type ShimEntry = {
  /** io.containerd.X.Y */
  type: string;
  /** The shim's configuration file; "": none. */
  configPath: string;
  /** Of runc's shim, by their names in containerd.runc.v1.Options. */
  options: Record<string, ShimOption>;
};

/** RFC 1123 label, as for the handler of a RuntimeClass. */
const handlerName = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

/** Absolute, or a name that is looked for in the usual folders. */
const program = kind(
  "text",
  "an absolute path, or the name of a program in the usual folders",
  v.pipe(v.string(), v.regex(/^(\/[^\0]+|[A-Za-z0-9._-]+)$/)),
);

/** In patterns of annotations "*" and "?" do not match "/". */
const annotationPatterns = v.array(
  v.pipe(v.string(), v.regex(/^[A-Za-z0-9*?](?:[A-Za-z0-9._/*?-]*[A-Za-z0-9*?])?$/)),
);

/** The type of runtimes that are called by their command line. */
export const ociType = "oci";

const programArguments = v.array(v.string());

const RuntimeFields = v.strictObject({
  path: v.optional(program.schema),
  "runtime-args": v.optional(programArguments),
  runtimeArgs: v.optional(programArguments),
  args: v.optional(programArguments),
  "runtime-type": v.optional(
    v.pipe(
      v.string(),
      v.check((type) => type === ociType || isShimType(type)),
    ),
    ociType,
  ),
  "runtime-path": v.optional(absolutePath.schema),
  "runtime-config-path": v.optional(absolutePath.schema),
  "runtime-options": v.optional(mapOf(v.string(), v.union([v.string(), v.number(), v.boolean()]))),
  "base-runtime-spec": v.optional(absolutePath.schema),
  "pod-annotations": v.optional(annotationPatterns),
  "container-annotations": v.optional(annotationPatterns),
  "privileged-without-host-devices": v.optional(v.boolean()),
  "privileged-without-host-devices-all-devices-allowed": v.optional(v.boolean()),
  "cni-conf-dir": v.optional(absolutePath.schema),
  "cni-max-conf-num": v.optional(integer(0, 16).schema),
});

/** Returns the arguments that an entry gives by each of their names; an empty list says nothing. */
function givenArguments(fields: v.InferOutput<typeof RuntimeFields>): string[][] {
  const lists = [fields["runtime-args"], fields.runtimeArgs, fields.args];
  return lists.filter((list) => list !== undefined && list.length > 0) as string[][];
}

/**
 * Takes runtimeArgs (Docker's name, written by Ascend's installer) and args (written by nvidia-ctk) for runtime-args:
 * installers of devices edit daemon.json as they edit Docker's.
 */
const RuntimeSchema = v.pipe(
  RuntimeFields,
  v.check((fields) => givenArguments(fields).length <= 1),
  v.transform((fields) => {
    const { runtimeArgs: _, args: __, ...rest } = fields;
    return { ...rest, "runtime-args": givenArguments(fields)[0] ?? [] };
  }),
);

/** An entry of runtimes as daemon.json has it, each field valid by itself. */
export type RuntimeValue = v.InferOutput<typeof RuntimeSchema>;

export const runtimes = kind(
  "map",
  'a map such as {"runc": {"path": "/usr/bin/runc", "runtime-args": []}} (runtimeArgs and args are other names of runtime-args: give one) or {"gvisor": {"runtime-type": "io.containerd.runsc.v1"}}; a name has lower-case letters, digits and "-"; the path is absolute, or a name to be looked for in the usual folders; a shim v2 runtime has a runtime-type instead of a path, and may have runtime-path (its executable), runtime-config-path (a file) and runtime-options (a map); a runtime may also have base-runtime-spec (a file), pod-annotations and container-annotations (lists of patterns such as "io.katacontainers.*"), privileged-without-host-devices and privileged-without-host-devices-all-devices-allowed (true or false), cni-conf-dir (a folder) and cni-max-conf-num (a whole number from 0 to 16)',
  mapOf(v.pipe(v.string(), v.regex(handlerName)), RuntimeSchema),
);

export const handlerNames = kind(
  "map",
  'a map of handler to runtime such as {"fast": "crun"}, or to the type of a shim such as {"kata": "io.containerd.kata.v2"}',
  mapOf(v.pipe(v.string(), v.regex(handlerName)), v.string()),
);

const id = integer(0, 2 ** 32 - 2);

/** Options of runc's shim, by their names in containerd.runc.v1.Options. */
export const runcOptions: Record<string, Kind<ShimOption>> = {
  no_pivot_root: flag,
  no_new_keyring: flag,
  shim_cgroup: text,
  io_uid: id,
  io_gid: id,
  binary_name: program,
  root: absolutePath,
  criu_image_path: absolutePath,
  criu_work_path: absolutePath,
};

/** The options that apply to a shim only. */
export const shimOptions: readonly string[] = ["no_pivot_root", "shim_cgroup", "binary_name"];

/** Returns the entry as it may stand in daemon.json. */
export function runtimeJson(entry: RuntimeEntry): Record<string, unknown> {
  const { path, shim } = entry;
  const program =
    shim === undefined
      ? {
          path,
          "runtime-args": entry.runtimeArgs,
          "runtime-options": entry.options,
        }
      : {
          "runtime-type": shim.type,
          "runtime-path": path.startsWith("/") ? path : undefined,
          "runtime-config-path": shim.configPath || undefined,
          "runtime-options": isRuncShim(shim.type) ? shim.options : undefined,
        };
  return {
    ...program,
    "base-runtime-spec": entry.baseRuntimeSpec,
    "pod-annotations": entry.podAnnotations,
    "container-annotations": entry.containerAnnotations,
    "privileged-without-host-devices": entry.privilegedWithoutHostDevices,
    "privileged-without-host-devices-all-devices-allowed": entry.privilegedAllDevicesAllowed,
    "cni-conf-dir": entry.cniConfDir,
    "cni-max-conf-num": entry.cniMaxConfNum,
  };
}
