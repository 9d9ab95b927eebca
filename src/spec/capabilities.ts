// Computes the capability sets of a container's process.
import { quoted } from "../base/text.ts";
import type { Capability } from "../proto/types.ts";
import type { OciCapabilities } from "./oci_types.ts";
import { invalid, unsupported } from "./refusals.ts";

/** Linux's capabilities by number (capabilities(7)). */
export const capabilityNames = (
  "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE " +
  "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO " +
  "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME " +
  "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG " +
  "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)
  .split(" ")
  .map((name) => `CAP_${name}`);

/** The default set of docker and containerd, which images rely on. */
const defaultNames = (
  "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE " +
  "SYS_CHROOT KILL AUDIT_WRITE"
)
  .split(" ")
  .map((name) => `CAP_${name}`);

/**
 * Returns the five sets. Only requested ambient capabilities are inheritable and ambient: a program that a
 * non-root user starts must not gain capabilities that its file does not grant.
 * @throws CriError INVALID_ARGUMENT for unknown names, FAILED_PRECONDITION for those the daemon lacks.
 */
export function capabilities(
  requested: Capability | null | undefined,
  privileged: boolean,
  hostNames: string[],
): OciCapabilities {
  const host = new Set(hostNames);
  const names = (field: "add_capabilities" | "drop_capabilities" | "add_ambient_capabilities") =>
    (requested?.[field] ?? []).map((name) => normalName(name, field));
  const add = names("add_capabilities");
  const drop = names("drop_capabilities");
  const ambient = names("add_ambient_capabilities");
  if (ambient.includes("ALL")) ambient.splice(0, ambient.length, ...host);
  const set = new Set(defaultNames.filter((name) => host.has(name)));
  if (privileged || add.includes("ALL")) for (const name of host) set.add(name);
  if (!privileged) {
    // ALL applies before single names; a name that is both added and dropped is dropped.
    if (drop.includes("ALL")) set.clear();
    for (const name of add) if (name !== "ALL") set.add(required(name, host));
    for (const name of drop) set.delete(name);
  }
  for (const name of ambient) set.add(required(name, host));
  const all = capabilityNames.filter((name) => set.has(name));
  const inherited = capabilityNames.filter((name) => ambient.includes(name));
  return {
    bounding: all,
    effective: all,
    inheritable: inherited,
    permitted: all,
    ambient: inherited,
  };
}

function normalName(name: string, field: string): string {
  const upper = name.toUpperCase();
  if (upper === "ALL") return upper;
  const full = upper.startsWith("CAP_") ? upper : `CAP_${upper}`;
  if (!capabilityNames.includes(full)) {
    throw invalid(`${field}: there is no capability ${quoted(name)}`);
  }
  return full;
}

function required(name: string, host: Set<string>): string {
  if (host.has(name)) return name;
  throw unsupported(`capability ${name} cannot be added: the daemon itself lacks it`);
}
