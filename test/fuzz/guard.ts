// Checks whether the fuzzer may send a request to a daemon that runs as root on this machine. It reads the
// bytes as the daemon will decode them, whatever made them: a path may lead only into the fuzzer's own
// folder, and nothing may change the host's namespaces, ports or cgroups.
import { posix } from "node:path";
import protobuf from "protobufjs";
import { ImageService, NodeService, RuntimeService } from "../../src/proto/services.ts";
import type { Rpc } from "./wire.ts";

/** What the fuzzer's requests may touch. */
export type Ground = {
  /** The folder of every path that a request names; three or more levels below what must stay. */
  dir: string;
  /** The start of a pod's cgroup parent. */
  cgroupParent: string;
};

/** Device nodes that are harmless to open and to write. */
const devices = ["/dev/null", "/dev/zero", "/dev/full"];
/** Paths in the container, resolved inside its rootfs, and names of profiles. */
const elsewhere = [
  "container_path",
  "working_dir",
  "masked_paths",
  "readonly_paths",
  "image_sub_path",
  "apparmor_profile",
];
const looksLikePath = /path|dir|location|file|parent|localhost_ref|folder|source/;
/** Sysctls of a pod's own namespaces whose values cannot harm the host. */
const sysctls = [
  "net.ipv4.ip_unprivileged_port_start",
  "net.ipv4.ping_group_range",
  "net.ipv4.tcp_syncookies",
  "kernel.shm_rmid_forced",
];
/** Host ports that nobody else on this machine uses. */
const [hostPortMin, hostPortMax] = [61_000, 61_099];
const hostNamespace = 2; // NamespaceMode.NODE

type Message = { [field: string]: unknown };

/** Why a request must not be sent, or undefined. What does not decode is refused by the daemon, too. */
export function harmOf(rpc: Rpc, bytes: Uint8Array, ground: Ground): string | undefined {
  const methods = { ...RuntimeService, ...ImageService, ...NodeService };
  let message: Message;
  try {
    message = methods[rpc.name as keyof typeof methods].request.decode(bytes) as unknown as Message;
  } catch {
    return undefined;
  }
  return harmIn(rpc.request, message, ground);
}

function harmIn(type: protobuf.Type, message: Message, ground: Ground): string | undefined {
  const own = messageRule(type, message);
  if (own !== undefined) return `${type.name}: ${own}`;
  for (const field of type.fieldsArray) {
    const value = message[field.name];
    if (value === undefined || value === null) continue;
    const values = field.repeated
      ? (value as unknown[])
      : field.map
        ? Object.values(value)
        : [value];
    for (const one of values) {
      const harm =
        field.resolvedType instanceof protobuf.Type
          ? harmIn(field.resolvedType, one as Message, ground)
          : fieldRule(field, one, ground);
      if (harm !== undefined) return `${type.name}.${field.name}: ${harm}`;
    }
  }
  return undefined;
}

/** What depends on several fields at once. */
function messageRule(type: protobuf.Type, message: Message): string | undefined {
  if (type.name !== "LinuxPodSandboxConfig") return undefined;
  const names = Object.keys((message["sysctls"] as object | undefined) ?? {});
  if (names.length === 0) return undefined;
  const security = message["security_context"] as Message | undefined;
  const options = (security?.["namespace_options"] ?? {}) as Message;
  const isOwn = ["network", "ipc"].every((name) => (options[name] ?? 0) === 0);
  if (!isOwn && names.some((name) => sysctls.includes(name))) return "sysctls of the host";
  const strange = names.find((name) => !sysctls.includes(name) && /^[a-z]/.test(name));
  return strange === undefined ? undefined : `sysctl ${strange}`;
}

function fieldRule(field: protobuf.Field, value: unknown, ground: Ground): string | undefined {
  const { name, type } = field;
  if (name === "privileged" && value === true) return "privileged";
  if (name === "pid" && value === hostNamespace) return "the host's processes";
  if (name === "host_port") return portRule(Number(value));
  if (type !== "string" || elsewhere.includes(name) || !looksLikePath.test(name)) return undefined;
  return pathRule(name, value as string, ground);
}

function portRule(port: number): string | undefined {
  const isPort = port >= 1 && port <= 65_535;
  return !isPort || (port >= hostPortMin && port <= hostPortMax) ? undefined : `port ${port}`;
}

/** A string is judged whole, and as the kernel would see it: cut at a NUL. */
function pathRule(name: string, value: string, ground: Ground): string | undefined {
  const spellings = [value, value.split("\0")[0]!];
  return spellings.every((path) => isHarmlessPath(name, path, ground))
    ? undefined
    : `path ${JSON.stringify(value.slice(0, 200))}`;
}

function isHarmlessPath(name: string, path: string, { dir, cgroupParent }: Ground): boolean {
  if (path === "") return true;
  if (name === "cgroup_parent") {
    return path.startsWith(cgroupParent) && !path.split("/").includes("..");
  }
  if (name === "host_path" && devices.includes(path)) return true;
  // Relative to the pod's log_directory, which is this folder or one in it.
  const whole = name === "log_path" ? posix.join(dir, path) : posix.normalize(path);
  return whole === dir || whole.startsWith(`${dir}/`);
}
