// Resolves daemon.json's runtimes and cri-runtimes into runtime handlers: OCI runtimes and shims (shim v2).
import { clipped, programPath, type Resolution } from "./config_resolution.ts";
import { nearest } from "./edit_distance.ts";
import {
  ociType,
  runcOptions,
  shimOptions,
  type RuntimeEntry,
  type RuntimeValue,
  type ShimEntry,
} from "./runtime_values.ts";
import { isRuncShim, isShimType, missingShim, shimProgram } from "./shim_program.ts";
import { check } from "./schema.ts";

export type GivenRuntimes = {
  /** Whether the cgroup driver is systemd's. */
  systemdCgroup: boolean;
  runtimes: Record<string, RuntimeValue>;
  /** cri-runtimes: handler → runtime, or type of a shim. */
  aliases: Record<string, string>;
  defaultRuntime: string;
};

/** Returns all handlers: the installed runtimes, those of runtimes, and those of cri-runtimes. */
export function resolveRuntimes(
  { runtimes, aliases, systemdCgroup, defaultRuntime }: GivenRuntimes,
  s: Resolution,
): Record<string, RuntimeEntry> {
  for (const [name, value] of Object.entries(runtimes)) {
    checkCgroupDriver(name, value, { systemdCgroup, s });
  }
  const found = new Map<string, RuntimeEntry>();
  const runc = s.host.findExecutable("runc");
  const crun = s.host.findExecutable("crun");
  // A node that is set to crun needs no runc.
  if (runc !== undefined || crun === undefined || defaultRuntime !== "crun") {
    found.set("runc", { path: runc ?? "/usr/bin/runc", runtimeArgs: [] });
  }
  if (crun !== undefined) found.set("crun", { path: crun, runtimeArgs: [] });
  for (const [name, value] of Object.entries(runtimes)) found.set(name, entryOf(name, value, s));
  const dead: string[] = [];
  for (const [name, target] of Object.entries(aliases)) {
    const entry = found.get(target);
    if (entry !== undefined) found.set(name, entry);
    else if (isShimType(target)) found.set(name, plainShim(name, target, s));
    else dead.push(`${name} (${target})`);
  }
  if (dead.length > 0) {
    s.warnings.push(
      `${s.place("cri-runtimes")}: "cri-runtimes" names runtimes that are not in "runtimes", so these handlers do not exist: ${dead.join(", ")}`,
    );
  }
  return Object.fromEntries(found);
}

const allDevices = "privileged-without-host-devices-all-devices-allowed";

function entryOf(name: string, value: RuntimeValue, s: Resolution): RuntimeEntry {
  if (value[allDevices] === true && value["privileged-without-host-devices"] !== true) {
    const why = 'it needs "privileged-without-host-devices": true';
    refuse([name, allDevices], why, s);
  }
  const isOci = value["runtime-type"] === ociType;
  return {
    ...(isOci ? ociRuntime(name, value, s) : shimRuntime(name, value, s)),
    baseRuntimeSpec: value["base-runtime-spec"],
    podAnnotations: value["pod-annotations"],
    containerAnnotations: value["container-annotations"],
    privilegedWithoutHostDevices: value["privileged-without-host-devices"],
    privilegedAllDevicesAllowed: value[allDevices],
    cniConfDir: value["cni-conf-dir"],
    cniMaxConfNum: value["cni-max-conf-num"],
  };
}

function ociRuntime(name: string, value: RuntimeValue, s: Resolution): RuntimeEntry {
  for (const field of ["runtime-path", "runtime-config-path"] as const) {
    if (value[field] === undefined) continue;
    const why = 'only shims have it, which have a "runtime-type" such as "io.containerd.runsc.v1"';
    refuse([name, field], why, s);
  }
  const options = runcOptionsOf(name, value, s);
  for (const option of shimOptions.filter((one) => one in options)) {
    const why = `only a shim has ${option}: an OCI runtime that is called by its command line has the other options of runc's shim`;
    refuse([name, "runtime-options"], why, s);
  }
  const { path = "", "runtime-args": runtimeArgs } = value;
  if (path !== "") {
    const effect = "the handler fails until it is installed";
    const found = programPath({ at: ["runtimes", name], path, effect }, s);
    return { path: found, runtimeArgs, ...(Object.keys(options).length > 0 ? { options } : {}) };
  }
  const shim = 'a "runtime-type" such as "io.containerd.runsc.v1" for a shim';
  s.problems.push(
    `${s.place("runtimes", name)}: "runtimes.${name}" must have the "path" of an OCI runtime, or ${shim}`,
  );
  return { path, runtimeArgs };
}

function shimRuntime(name: string, value: RuntimeValue, s: Resolution): RuntimeEntry {
  const type = value["runtime-type"];
  const configPath = value["runtime-config-path"] ?? "";
  refuseForShim(name, value, s);
  if (configPath !== "" && !s.host.exists(configPath)) {
    const at = ["runtimes", name, "runtime-config-path"] as const;
    const effect = "pods of this handler fail until it exists";
    s.warnings.push(`${s.place(...at)}: "${at.join(".")}": there is no ${configPath}: ${effect}`);
  }
  const options = runcShimOptions(name, value, s);
  const path = value["runtime-path"] ?? shimProgram(type);
  return newShim({ at: ["runtimes", name], path, shim: { type, configPath, options } }, s);
}

/** Refuses fields of OCI runtimes and of other shims. */
function refuseForShim(name: string, value: RuntimeValue, s: Resolution): void {
  const type = value["runtime-type"];
  if (value.path !== undefined) {
    const why = `a shim's executable is its "runtime-path", and the OCI runtime behind runc's shim is the option BinaryName`;
    refuse([name, "path"], why, s);
  }
  if (value["runtime-args"].length > 0) {
    refuse([name, "runtime-args"], "the arguments of a shim are not configurable", s);
  }
  if (isRuncShim(type) && value["runtime-config-path"] !== undefined) {
    refuse([name, "runtime-config-path"], `runc's shim reads its "runtime-options" instead`, s);
  }
  if (!isRuncShim(type) && value["runtime-options"] !== undefined) {
    const why = `only runc's shim has them: name the shim's own configuration file in "runtime-config-path"`;
    refuse([name, "runtime-options"], why, s);
  }
}

function refuse(steps: [name: string, field: string], why: string, s: Resolution): void {
  const at = ["runtimes", ...steps] as const;
  s.problems.push(`${s.place(...at)}: "${at.join(".")}" must not be given here: ${why}`);
}

function plainShim(name: string, type: string, s: Resolution): RuntimeEntry {
  const options = isRuncShim(type) ? runcDefaults(s) : {};
  const shim = { type, configPath: "", options };
  return newShim({ at: ["cri-runtimes", name], path: shimProgram(type), shim }, s);
}

type FoundShim = { at: readonly [key: string, name: string]; path: string; shim: ShimEntry };

/** Warns of a shim that is not installed. */
function newShim({ at, path, shim }: FoundShim, s: Resolution): RuntimeEntry {
  const found = path.startsWith("/") ? path : s.host.findExecutable(path);
  if (found === undefined || !s.host.isExecutable(found)) {
    const missing = missingShim(path, shim.type);
    s.warnings.push(
      `${s.place(...at)}: "${at.join(".")}": ${missing}; pods of this handler are refused until then`,
    );
  }
  return { path: found ?? path, runtimeArgs: [], shim };
}

/** The names as in daemon.json, where BinaryName is binary_name, too. */
const optionNames = new Map(
  Object.keys(runcOptions).map((name) => [name.replaceAll("_", ""), name]),
);
const containerdNames = ["NoPivotRoot", "NoNewKeyring", "ShimCgroup", "IoUid", "IoGid"].concat([
  "BinaryName",
  "Root",
  "CriuImagePath",
  "CriuWorkPath",
]);

function runcShimOptions(name: string, value: RuntimeValue, s: Resolution): ShimEntry["options"] {
  if (!isRuncShim(value["runtime-type"])) return {};
  const options = runcOptionsOf(name, value, s);
  return { ...runcDefaults(s), ...options, ...binaryOf(name, options, s) };
}

/** Accepts the option SystemdCgroup only if it says what systemd-cgroup does. */
function checkCgroupDriver(
  name: string,
  { "runtime-options": given = {} }: RuntimeValue,
  { systemdCgroup, s }: { systemdCgroup: boolean; s: Resolution },
): void {
  for (const [spelling, value] of Object.entries(given)) {
    if (plainName(spelling) !== cgroupOption || value === systemdCgroup) continue;
    const why = `must be ${systemdCgroup}, as the key "systemd-cgroup", not ${clipped(value)}: a kubelet uses one cgroup driver for all handlers of its node`;
    const at = ["runtimes", name, "runtime-options", spelling] as const;
    s.problems.push(`${s.place(...at)}: "${at.join(".")}" ${why}`);
  }
}

const cgroupOption = "systemdcgroup";

/** "BinaryName" and "binary_name" are one option. */
function plainName(spelling: string): string {
  return spelling.replaceAll(/[_-]/g, "").toLowerCase();
}

/** Returns the given options of runc by their names in containerd.runc.v1.Options. */
function runcOptionsOf(
  name: string,
  { "runtime-options": given = {} }: RuntimeValue,
  s: Resolution,
): ShimEntry["options"] {
  const options: ShimEntry["options"] = {};
  for (const [spelling, value] of Object.entries(given)) {
    const at = ["runtimes", name, "runtime-options", spelling] as const;
    const problem = (text: string) =>
      s.problems.push(`${s.place(...at)}: "${at.join(".")}" ${text}`);
    const plain = plainName(spelling);
    if (plain === cgroupOption) continue;
    const option = optionNames.get(plain);
    if (option === undefined) {
      problem(`is unknown; the nearest known option is "${nearest(spelling, containerdNames)}"`);
      continue;
    }
    const { schema, allowed } = runcOptions[option]!;
    const checked = check(schema, value);
    if (option in options) problem("is given twice");
    else if (checked.success) options[option] = checked.output;
    else problem(`must be ${allowed}, not ${clipped(value)}`);
  }
  return options;
}

/** Without this the shim looks for runc in the PATH of a service, which may lack /usr/sbin. */
function runcDefaults(s: Resolution): ShimEntry["options"] {
  const path = s.host.findExecutable("runc");
  return path === undefined ? {} : { binary_name: path };
}

function binaryOf(
  name: string,
  { binary_name: path }: ShimEntry["options"],
  s: Resolution,
): ShimEntry["options"] {
  if (typeof path !== "string") return {};
  const effect = "the handler fails until it is installed";
  const at = ["runtimes", name, "runtime-options"] as [string, string, string];
  return { binary_name: programPath({ at, path, effect }, s) };
}
