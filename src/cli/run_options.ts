// Builds the pod and container configurations of `isulad-ts run` from its options. Pure.
import { basename, resolve } from "node:path";
import { CriError } from "../base/errors.ts";
import { refuseOccupiedPorts } from "../base/annotations.ts";
import { toLong } from "../base/int64.ts";
import { procMasks } from "../base/proc_masks.ts";
import { quoted } from "../base/text.ts";
import { runtime } from "../proto/messages.js";
import type {
  ContainerConfig,
  LinuxContainerResources,
  Mount,
  NamespaceOption,
  PodSandboxConfig,
  PortMapping,
} from "../proto/types.ts";

const { NamespaceMode, Protocol } = runtime.v1;

export type RunOptions = {
  image: string;
  command: string[];
  name?: string | undefined;
  env: string[];
  volumes: string[];
  ports: string[];
  workdir?: string | undefined;
  hostNetwork: boolean;
  privileged: boolean;
  runtimeHandler: string;
  stdin: boolean;
  tty: boolean;
  user?: string | undefined;
  entrypoint?: string | undefined;
  memory?: string | undefined;
  cpus?: string | undefined;
  annotations: string[];
  labels: string[];
};

/** Label by which `run` finds its pod to remove it, even if RunPodSandbox's answer was lost. */
export const runLabel = "isulad-ts.run";
/** In the pod's folder of logs. */
export const logName = "output.log";
const namespace = "default";
/** Of a DNS label, as which the name is the pod's hostname. */
const nameMax = 63;

export function podConfig(
  options: RunOptions,
  uid: string,
  logDirectory: string,
): PodSandboxConfig {
  const name = nameOf(options);
  return {
    metadata: { name, uid, namespace, attempt: 0 },
    hostname: options.hostNetwork ? "" : name,
    log_directory: logDirectory,
    port_mappings: options.ports.map(portMapping),
    labels: labels(options, uid),
    annotations: {
      ...pairs("--annotation", options.annotations),
      ...(options.ports.length > 0 ? { [refuseOccupiedPorts]: "true" } : {}),
    },
    linux: {
      security_context: {
        namespace_options: namespaces(options),
        privileged: options.privileged,
      },
    },
  };
}

export function containerConfig(
  options: RunOptions,
  uid: string,
  imageId: string,
): ContainerConfig {
  const name = nameOf(options);
  return {
    metadata: { name, attempt: 0 },
    image: { image: imageId, user_specified_image: options.image },
    // Like docker run: replaces the image's Cmd, and keeps its Entrypoint without --entrypoint.
    command: options.entrypoint === undefined ? [] : [options.entrypoint],
    args: options.command,
    stdin: options.stdin,
    stdin_once: options.stdin,
    tty: options.tty,
    working_dir: options.workdir,
    envs: options.env.map(variable),
    mounts: options.volumes.map(mount),
    labels: labels(options, uid),
    annotations: pairs("--annotation", options.annotations),
    log_path: logName,
    linux: {
      resources: limits(options),
      security_context: {
        namespace_options: namespaces(options),
        privileged: options.privileged,
        ...userOf(options.user),
        // Without these lists /proc would be unmasked.
        ...procMasks(),
      },
    },
  };
}

/** One pid namespace per container, so that the daemon needs no pause container. */
function namespaces(options: RunOptions): NamespaceOption {
  return {
    network: options.hostNetwork ? NamespaceMode.NODE : NamespaceMode.POD,
    pid: NamespaceMode.CONTAINER,
    ipc: NamespaceMode.POD,
  };
}

function labels(options: RunOptions, uid: string): Record<string, string> {
  const name = nameOf(options);
  return {
    ...pairs("--label", options.labels),
    [runLabel]: uid,
    "io.kubernetes.pod.name": name,
    "io.kubernetes.pod.namespace": namespace,
    "io.kubernetes.pod.uid": uid,
    "io.kubernetes.container.name": name,
  };
}

/** Returns --name, else the last part of the image's name as a DNS label: quay.io/a/My_App:1 → my-app. */
export function nameOf(options: Pick<RunOptions, "image" | "name">): string {
  const source = options.name ?? basename(options.image.split("@")[0]!).split(":")[0]!;
  const name = source
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .replace(/^-/, "")
    .slice(0, nameMax)
    .replace(/-$/, "");
  if (options.name !== undefined && name !== options.name) {
    const form = `at most ${nameMax} lowercase letters, digits and "-", as in ${name || "a"}`;
    throw invalid("--name", options.name, form);
  }
  return name || "pod";
}

function pairs(option: string, texts: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    texts.map((text) => {
      const [, key, value = ""] = /^([^=]+)(?:=(.*))?$/s.exec(text) ?? [];
      if (key === undefined) throw invalid(option, text, "key=value");
      return [key, value];
    }),
  );
}

/** A name is looked up in the image; a group only by number. */
function userOf(text: string | undefined) {
  if (text === undefined) return {};
  const [, user = "", group] = /^([^:]+)(?::(\d{1,10}))?$/.exec(text) ?? [];
  if (user === "") throw invalid("--user", text, "NAME, UID, NAME:GID or UID:GID");
  const isNumber = /^\d{1,10}$/.test(user);
  return {
    ...(isNumber ? { run_as_user: { value: toLong(BigInt(user)) } } : { run_as_username: user }),
    ...(group === undefined ? {} : { run_as_group: { value: toLong(BigInt(group)) } }),
  };
}

const cpuPeriodUs = 100_000;
const unitBytes: Record<string, number> = { "": 1, b: 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };

function limits({ memory, cpus }: RunOptions): LinuxContainerResources {
  const limits: LinuxContainerResources = {};
  if (memory !== undefined) {
    const [, count = "", unit = ""] = /^(\d{1,12}(?:\.\d+)?)([bkmg]?)$/i.exec(memory) ?? [];
    const bytes = Math.floor(Number(count) * (unitBytes[unit.toLowerCase()] ?? 0));
    if (bytes < 1) throw invalid("--memory", memory, "NUMBER[b|k|m|g], as in 512m");
    limits.memory_limit_in_bytes = toLong(BigInt(bytes));
  }
  if (cpus !== undefined) {
    const quota = /^\d{1,5}(\.\d+)?$/.test(cpus) ? Math.round(Number(cpus) * cpuPeriodUs) : 0;
    if (quota < 1) throw invalid("--cpus", cpus, "NUMBER, as in 0.5");
    limits.cpu_period = toLong(cpuPeriodUs);
    limits.cpu_quota = toLong(quota);
  }
  return limits;
}

function variable(text: string): { key: string; value: Uint8Array } {
  const equals = text.indexOf("=");
  const key = equals < 0 ? text : text.slice(0, equals);
  if (key === "") throw invalid("--env", text, "NAME=VALUE, or NAME to pass this shell's value");
  const value = equals < 0 ? (process.env[key] ?? "") : text.slice(equals + 1);
  return { key, value: new TextEncoder().encode(value) };
}

function mount(text: string): Mount {
  const [hostPath = "", containerPath = "", mode, more] = text.split(":");
  const known = mode === undefined || mode === "ro" || mode === "rw";
  if (!hostPath || !containerPath.startsWith("/") || !known || more !== undefined) {
    throw invalid("--volume", text, "HOST-PATH:/PATH-IN-CONTAINER[:ro]");
  }
  const readonly = mode === "ro";
  return { host_path: resolve(hostPath), container_path: containerPath, readonly };
}

function portMapping(text: string): PortMapping {
  const found = /^(?:(\[[^\]]+\]|[^:[\]]+):)?(\d{1,5}):(\d{1,5})(?:\/(tcp|udp|sctp))?$/.exec(text);
  const [, hostIp = "", host = "0", container = "0", protocol = "tcp"] = found ?? [];
  const inRange = [host, container].every((port) => Number(port) >= 1 && Number(port) <= 65535);
  if (!inRange) throw invalid("--publish", text, "[HOST-IP:]HOST-PORT:PORT-IN-POD[/tcp|udp|sctp]");
  return {
    host_ip: hostIp.replaceAll(/[[\]]/g, ""),
    host_port: Number(host),
    container_port: Number(container),
    protocol: Protocol[protocol.toUpperCase() as keyof typeof Protocol],
  };
}

function invalid(option: string, text: string, form: string): CriError {
  return new CriError("INVALID_ARGUMENT", `${option} ${quoted(text)}: must have the form ${form}`);
}
