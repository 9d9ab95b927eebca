// Sorts a pod's sysctls by the namespace that they belong to and refuses those that would change the node.
import { CriError } from "../base/errors.ts";

/** The sysctls with a value per ipc namespace. */
const ipcSysctl = /^(kernel\.(shm(max|all|mni|_rmid_forced)|msg(max|mnb|mni)|sem)|fs\.mqueue\..+)$/;
const sysctlFile = /^\/proc\/sys(\/[\w@:-][\w@:.-]*){2,}$/; // no segment is "..": it stays inside
const perInterface = /^net\.(ipv4|ipv6)\.(conf|neigh)\./;

/**
 * Sorts sysctls into those to write at once, by file, those of the uts namespace, by file, and those of
 * interfaces, by name: CNI creates the interfaces later and may set these sysctls itself. owned: the
 * namespaces that the pod does not share. @throws CriError INVALID_ARGUMENT for a sysctl of the node.
 */
export function splitSysctls(sysctls: Record<string, string>, owned: readonly string[]) {
  const now: Record<string, string> = {};
  const uts: Record<string, string> = {};
  const later: Record<string, string> = {};
  for (const [key, value] of Object.entries(sysctls)) {
    const path = sysctlPath(key);
    const kind = namespaceOf(dotted(key));
    if (kind === undefined || !sysctlFile.test(path)) {
      throw new CriError("INVALID_ARGUMENT", `sysctl ${key} belongs to no namespace of a pod`);
    }
    if (!owned.includes(kind)) {
      const problem = `would change the node: the pod shares the node's ${kind} namespace`;
      throw new CriError("INVALID_ARGUMENT", `sysctl ${key} ${problem}`);
    }
    if (perInterface.test(dotted(key))) later[key] = value;
    else if (kind === "uts") uts[path] = value;
    else now[path] = value;
  }
  return { now, uts, later };
}

export function sysctlPath(key: string): string {
  return `/proc/sys/${swapSeparators(dotted(key))}`;
}

function namespaceOf(name: string): "net" | "ipc" | "uts" | undefined {
  if (name.startsWith("net.")) return "net";
  if (name === "kernel.domainname") return "uts";
  return ipcSysctl.test(name) ? "ipc" : undefined;
}

/** If the first separator is a slash, dots belong to names ("net/ipv4/conf/eth0.5/x"). */
function dotted(key: string): string {
  const slash = key.search(/[./]/);
  return key[slash] === "/" ? swapSeparators(key) : key;
}

function swapSeparators(key: string): string {
  return key.replace(/[./]/g, (separator) => (separator === "." ? "/" : "."));
}
