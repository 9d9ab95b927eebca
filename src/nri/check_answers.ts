// Validates plugins' answers before they are merged; field_owners.ts detects conflicts between plugins.
import { CriError } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { jsonText } from "../base/json.ts";
import { clip } from "../base/text.ts";
import type {
  ContainerAdjustment,
  ContainerUpdate,
  LinuxContainerAdjustment,
  LinuxMemoryPolicy,
  LinuxResources,
  LinuxSeccomp,
  Mount,
  POSIXRlimit,
} from "../proto/nri_types.ts";
import { hookKinds } from "./merge_adjustments.ts";
import { unmarked } from "./field_owners.ts";

const int64Max = 2n ** 63n - 1n;
const namespaceTypes = ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"];
const cdiName = /^[A-Za-z][\w.-]*\/[A-Za-z][\w.-]*=[A-Za-z0-9][\w.:-]*$/;
const sysctlName = /^[A-Za-z0-9_][\w*@%-]*([./][A-Za-z0-9_][\w*@%-]*)*$/;
/** Name of a resctrl group; "" removes a container's class. */
const rdtName = /^(?!\.\.?$|info$|mon_groups$|mon_data$)[^/\s]{0,255}$/;
/** resctrl's root group (runtime-spec, config-linux.md, intelRdt). */
const rdtRoot = "/";
const unifiedName = /^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$/;

/** @throws CriError INVALID_ARGUMENT naming the field and its value. */
export function checkAdjustment(adjust: ContainerAdjustment): void {
  for (const key of Object.keys(adjust.annotations ?? {})) {
    if (unmarked(key).key === "") throw wrong("annotations", key, "an annotation without a name");
  }
  for (const mount of adjust.mounts ?? []) checkMount(mount);
  for (const { key, value } of adjust.env ?? []) {
    const name = unmarked(key ?? "").key;
    if (name === "" || name.includes("=")) throw wrong("env", key, "not a variable name");
    checkText("env", `${key}=${value}`);
  }
  for (const arg of adjust.args ?? []) checkText("args", arg);
  if (adjust.args?.length === 1 && adjust.args[0] === "") throw wrong("args", "", "no program");
  for (const kind of hookKinds) {
    for (const { path, args, env, timeout } of adjust.hooks?.[kind] ?? []) {
      if (!path?.startsWith("/")) throw wrong(`hooks.${kind}.path`, path, "not absolute");
      for (const text of [path, ...(args ?? []), ...(env ?? [])]) checkText("hooks", text);
      if (timeout && toBigInt(timeout.value) <= 0n) {
        throw wrong(`hooks.${kind}.timeout`, toBigInt(timeout.value), "not positive");
      }
    }
  }
  for (const rlimit of adjust.rlimits ?? []) checkRlimit(rlimit);
  for (const { name } of adjust.CDI_devices ?? []) {
    if (!cdiName.test(name ?? "")) throw wrong("CDI_devices", name, "not vendor/class=name");
  }
  if (adjust.linux) checkLinux(adjust.linux);
}

/** @throws CriError INVALID_ARGUMENT naming the container, the field and its value. */
export function checkUpdate({ container_id: id, linux }: ContainerUpdate): void {
  if (!id) throw wrong("update.container_id", id, "empty");
  checkResources(linux?.resources ?? {}, `update of ${id}: `);
}

function checkMount({ destination, type, source, options }: Mount): void {
  const { key } = unmarked(destination ?? "");
  if (!key.startsWith("/") || key.split("/").includes("..")) {
    throw wrong("mounts.destination", destination, "not an absolute path");
  }
  for (const text of [key, type ?? "", source ?? "", ...(options ?? [])]) checkText("mounts", text);
}

function checkRlimit({ type, hard, soft }: POSIXRlimit): void {
  if (!/^RLIMIT_[A-Z]+$/.test(type ?? "")) throw wrong("rlimits.type", type, "not RLIMIT_…");
  if (toBigInt(soft) > toBigInt(hard)) {
    throw wrong(`rlimits ${type}: soft`, toBigInt(soft), `above the hard limit ${toBigInt(hard)}`);
  }
}

function checkLinux(linux: LinuxContainerAdjustment): void {
  for (const { path, type, major, minor } of linux.devices ?? []) {
    const { key, removed } = unmarked(path ?? "");
    if (!key.startsWith("/")) throw wrong("devices.path", path, "not absolute");
    checkText("devices.path", key);
    if (removed) continue;
    if (!/^[cbup]$/.test(type ?? "")) throw wrong(`device ${key}: type`, type, "not c, b, u or p");
    for (const number of [major, minor]) checkAtLeast(`device ${key}: number`, number, 0n);
  }
  checkResources(linux.resources ?? {}, "");
  if (linux.cgroups_path && linux.cgroups_path.split("/").includes("..")) {
    throw wrong("cgroups_path", linux.cgroups_path, 'contains ".."');
  }
  checkText("cgroups_path", linux.cgroups_path ?? "");
  const oom = linux.oom_score_adj ? toBigInt(linux.oom_score_adj.value) : 0n;
  if (oom < -1000n || oom > 1000n) throw wrong("oom_score_adj", oom, "outside -1000–1000");
  const ioClass: number = linux.io_priority?.class ?? 0;
  const priority = linux.io_priority?.priority ?? 0;
  if (ioClass < 0 || ioClass > 3) throw wrong("io_priority.class", ioClass, "outside 0–3");
  if (priority < 0 || priority > 7) throw wrong("io_priority.priority", priority, "outside 0–7");
  for (const { type, path } of linux.namespaces ?? []) {
    const { key } = unmarked(type ?? "");
    if (!namespaceTypes.includes(key)) {
      throw wrong("namespaces.type", type, `not one of ${namespaceTypes.join(", ")}`);
    }
    if (path && !path.startsWith("/")) throw wrong(`namespace ${key}: path`, path, "not absolute");
    checkText(`namespace ${key}: path`, path ?? "");
  }
  for (const [name, value] of Object.entries(linux.sysctl ?? {})) {
    if (!sysctlName.test(unmarked(name).key)) throw wrong("sysctl", name, "not a sysctl name");
    checkText("sysctl", value);
  }
  for (const [host, device] of Object.entries(linux.net_devices ?? {})) {
    for (const name of [unmarked(host).key, ...(device.name ? [device.name] : [])]) {
      if (!/^[^/\s:]{1,15}$/.test(name)) throw wrong("net_devices", name, "not an interface name");
    }
  }
  const clos = linux.rdt?.clos_id?.value ?? "";
  if (clos !== rdtRoot && !rdtName.test(clos)) {
    throw wrong("rdt.clos_id", clos, "not a class name");
  }
  for (const text of linux.rdt?.schemata?.value ?? []) checkText("rdt.schemata", text);
  const policy: number = linux.scheduler?.policy ?? 0;
  if (policy < 0 || policy > 7) throw wrong("scheduler.policy", policy, "outside 0–7");
  for (const flag of (linux.scheduler?.flags ?? []) as number[]) {
    if (flag < 0 || flag > 6) throw wrong("scheduler.flags", flag, "outside 0–6");
  }
  if (linux.memory_policy) checkMemoryPolicy(linux.memory_policy);
  if (linux.seccomp_policy) checkSeccomp(linux.seccomp_policy);
}

function checkMemoryPolicy({ mode, nodes, flags }: LinuxMemoryPolicy): void {
  const number: number = mode ?? 0;
  if (number < 0 || number > 6) throw wrong("memory_policy.mode", number, "outside 0–6");
  if (nodes) checkNumberList("memory_policy.nodes", nodes);
  for (const flag of (flags ?? []) as number[]) {
    if (flag < 0 || flag > 2) throw wrong("memory_policy.flags", flag, "outside 0–2");
  }
}

/** Checked here because runtimes validate it only when the container starts. */
function checkSeccomp(policy: LinuxSeccomp): void {
  const check = (field: string, value: string | null | undefined, prefix: string) => {
    if (new RegExp(`^${prefix}_[A-Z0-9_]+$`).test(value ?? "")) return;
    throw wrong(`seccomp_policy.${field}`, value, `not ${prefix}_…`);
  };
  check("default_action", policy.default_action, "SCMP_ACT");
  for (const one of policy.architectures ?? []) check("architectures", one, "SCMP_ARCH");
  for (const one of policy.flags ?? []) check("flags", one, "SECCOMP_FILTER_FLAG");
  for (const { names, action, args } of policy.syscalls ?? []) {
    if (!names?.length) throw wrong("seccomp_policy.syscalls", "", "without names");
    check("syscalls.action", action, "SCMP_ACT");
    for (const { op } of args ?? []) check("syscalls.args.op", op, "SCMP_CMP");
  }
}

function checkResources(resources: LinuxResources, what: string): void {
  const { memory, cpu } = resources;
  for (const name of ["limit", "reservation", "swap", "kernel", "kernel_tcp"] as const) {
    if (memory?.[name]) checkAtLeast(`${what}memory.${name}`, memory[name].value, -1n);
  }
  if (memory?.swappiness && toBigInt(memory.swappiness.value) > 100n) {
    throw wrong(`${what}memory.swappiness`, toBigInt(memory.swappiness.value), "over 100");
  }
  if (cpu?.quota) checkAtLeast(`${what}cpu.quota`, cpu.quota.value, -1n);
  for (const name of ["shares", "period"] as const) {
    const value = toBigInt(cpu?.[name]?.value);
    // In CRI they are signed.
    if (value > int64Max) throw wrong(`${what}cpu.${name}`, value, `over ${int64Max}`);
  }
  for (const name of ["cpus", "mems"] as const) {
    if (cpu?.[name]) checkNumberList(`${what}cpu.${name}`, cpu[name]);
  }
  for (const { page_size } of resources.hugepage_limits ?? []) {
    if (!/^\d+[KMG]i?B$/.test(page_size ?? "")) {
      throw wrong(`${what}hugepage_limits.page_size`, page_size, "not like 2MB");
    }
  }
  for (const [name, value] of Object.entries(resources.unified ?? {})) {
    if (!unifiedName.test(name)) throw wrong(`${what}unified`, name, "not a cgroup file name");
    checkText(`${what}unified.${name}`, value);
  }
  const rdt = resources.rdt_class?.value ?? "";
  if (!rdtName.test(rdt)) throw wrong(`${what}rdt_class`, rdt, "not a class name");
  if (resources.pids) checkAtLeast(`${what}pids.limit`, resources.pids.limit, -1n);
  for (const { type, access, major, minor } of resources.devices ?? []) {
    if (!/^[abc]?$/.test(type ?? "")) throw wrong(`${what}devices.type`, type, "not a, b or c");
    if (!/^[rwm]{0,3}$/.test(access ?? "")) throw wrong(`${what}devices.access`, access, "not rwm");
    for (const number of [major, minor]) {
      if (number) checkAtLeast(`${what}devices: number`, number.value, -1n);
    }
  }
}

function checkAtLeast(field: string, value: Parameters<typeof toBigInt>[0], least: bigint): void {
  const number = toBigInt(value);
  if (number < least) throw wrong(field, number, `below ${least}`);
}

/** Checks a list of processors or memory nodes. */
function checkNumberList(field: string, list: string): void {
  if (!/^\d+(-\d+)?(,\d+(-\d+)?)*$/.test(list)) throw wrong(field, list, "not a list of numbers");
}

/** Arguments of execve(2) and mount(2) and file names cannot contain NUL. */
function checkText(field: string, text: string): void {
  if (text.includes("\0")) throw wrong(field, text, "contains NUL");
}

function wrong(field: string, value: unknown, why: string): CriError {
  const shown = typeof value === "bigint" ? String(value) : jsonText(value ?? "");
  return new CriError("INVALID_ARGUMENT", `${field}: ${clip(shown, 200)}: ${why}`);
}
