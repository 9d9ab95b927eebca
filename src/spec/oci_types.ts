// Defines the written subset of the OCI runtime specification (1.0.2, for runc 1.1) and its JSON. Byte counts
// and limits are bigint: they may exceed 2^53, above which a number is inexact.
import { jsonText, trustedJsonValue, type Reviver } from "../base/json.ts";

export type OciNamespaceType = "pid" | "network" | "ipc" | "uts" | "mount" | "user" | "cgroup";
export type OciNamespace = { type: OciNamespaceType; path?: string };
export type OciIdMapping = { containerID: number; hostID: number; size: number };

export type OciMount = {
  destination: string;
  type?: string;
  source?: string;
  options?: string[];
  uidMappings?: OciIdMapping[];
  gidMappings?: OciIdMapping[];
};

export type OciRlimit = { type: string; soft: bigint; hard: bigint };
export type OciUser = { uid: number; gid: number; umask?: number; additionalGids?: number[] };

export type OciCapabilities = {
  bounding: string[];
  effective: string[];
  inheritable: string[];
  permitted: string[];
  ambient: string[];
};

export type OciProcess = {
  terminal?: boolean;
  user: OciUser;
  args: string[];
  env: string[];
  cwd: string;
  capabilities: OciCapabilities;
  rlimits?: OciRlimit[];
  noNewPrivileges: boolean;
  apparmorProfile?: string;
  selinuxLabel?: string;
  oomScoreAdj?: number;
  ioPriority?: { class: string; priority: number };
  scheduler?: OciScheduler;
};

/** sched_setattr(2); times in nanoseconds. */
type OciScheduler = {
  policy: string;
  nice?: number;
  priority?: number;
  flags?: string[];
  runtime?: bigint;
  deadline?: bigint;
  period?: bigint;
};

export type OciDevice = {
  path: string;
  type: "c" | "b" | "p";
  major: number;
  minor: number;
  fileMode: number;
  uid: number;
  gid: number;
};

export type OciDeviceRule = {
  allow: boolean;
  type?: "a" | "b" | "c";
  major?: number;
  minor?: number;
  access: string;
};

export type OciMemory = {
  limit?: bigint;
  reservation?: bigint;
  swap?: bigint;
  kernel?: bigint;
  kernelTCP?: bigint;
  swappiness?: bigint;
  disableOOMKiller?: boolean;
  useHierarchy?: boolean;
};

export type OciCpu = {
  shares?: bigint;
  quota?: bigint;
  period?: bigint;
  realtimeRuntime?: bigint;
  realtimePeriod?: bigint;
  cpus?: string;
  mems?: string;
};

/** Bytes or I/O operations per second of block devices. */
type OciRates = { major: number; minor: number; rate: bigint }[];

export type OciBlockIO = {
  weight?: number;
  weightDevice?: { major: number; minor: number; weight: number }[];
  throttleReadBpsDevice?: OciRates;
  throttleWriteBpsDevice?: OciRates;
  throttleReadIOPSDevice?: OciRates;
  throttleWriteIOPSDevice?: OciRates;
};

export type OciResources = {
  devices: OciDeviceRule[];
  memory?: OciMemory;
  cpu?: OciCpu;
  pids?: { limit: bigint };
  blockIO?: OciBlockIO;
  hugepageLimits?: { pageSize: string; limit: bigint }[];
  unified?: Record<string, string>;
};

export type OciSeccompArg = { index: number; value: bigint; valueTwo?: bigint; op: string };
export type OciSeccompRule = {
  names: string[];
  action: string;
  errnoRet?: number;
  args?: OciSeccompArg[];
};

export type OciSeccomp = {
  defaultAction: string;
  defaultErrnoRet?: number;
  architectures?: string[];
  flags?: string[];
  listenerPath?: string;
  listenerMetadata?: string;
  syscalls?: OciSeccompRule[];
};

export type OciLinux = {
  namespaces: OciNamespace[];
  uidMappings?: OciIdMapping[];
  gidMappings?: OciIdMapping[];
  devices: OciDevice[];
  cgroupsPath: string;
  resources: OciResources;
  seccomp?: OciSeccomp;
  rootfsPropagation?: string;
  maskedPaths?: string[];
  readonlyPaths?: string[];
  mountLabel?: string;
  sysctl?: Record<string, string>;
  /** Keyed by the interface's name on the host. */
  netDevices?: Record<string, { name?: string }>;
  intelRdt?: { closID?: string; schemata?: string[]; enableMonitoring?: boolean };
  memoryPolicy?: { mode: string; nodes?: string; flags?: string[] };
};

/** timeout in seconds. */
export type OciHook = { path: string; args?: string[]; env?: string[]; timeout?: number };

export const ociHookNames = [
  "prestart",
  "createRuntime",
  "createContainer",
  "startContainer",
  "poststart",
  "poststop",
] as const;
export type OciHookName = (typeof ociHookNames)[number];

export type OciSpec = {
  ociVersion: string;
  hostname?: string;
  process: OciProcess;
  root: { path: string; readonly: boolean };
  mounts: OciMount[];
  annotations: Record<string, string>;
  hooks?: Partial<Record<OciHookName, OciHook[]>>;
  linux: OciLinux;
};

/** Serializes a spec, process or resources for config.json; bigint keeps every digit. */
export function ociJson(value: OciSpec | OciProcess | Partial<OciResources>): string {
  return jsonText(value);
}

const bigKeys = new Set(
  (
    "limit swap shares quota period reservation kernel kernelTCP swappiness realtimeRuntime " +
    "realtimePeriod runtime deadline rate soft hard value valueTwo"
  ).split(" "),
);

/** Parses ociJson's output. @throws SyntaxError if it is not JSON. */
export function parseOciSpec(text: string): OciSpec {
  return trustedJsonValue(text, bigIntegers) as OciSpec;
}

/** Reviver for OCI JSON: integers that may exceed 2^53 become bigint. */
export const bigIntegers: Reviver = (key, value, context) => {
  const isBig = Number.isInteger(value) && (bigKeys.has(key) || !Number.isSafeInteger(value));
  return isBig ? BigInt(context.source ?? String(value)) : value;
};

/** Returns an object with this field; without any, if the value is empty. */
export function nonEmpty(name: string, value: object): object {
  return Object.keys(value).length > 0 ? { [name]: value } : {};
}
