// A pod's namespaces, kept alive as files that containers join by path.
//
// Decision: unshare(1) of util-linux makes them, for the daemon must never enter a namespace itself
// (its engine's threads would stay there). The same child names the host, writes the sysctls and sets
// loopback up before it ends: one process start, where the CNI loopback plugin would be a second.
// A pod with a user namespace of its own takes one more (user_namespace.ts).
import { accessSync, constants, statSync } from "node:fs";
import { mkdir, open, rmdir, unlink } from "node:fs/promises";
import { delimiter, dirname, join } from "node:path";
import { CriError, codeOf, errnoOf, messageOf } from "../base/errors.ts";
import { MNT_DETACH, unmount } from "../sys/mount.ts";
import { failureOutput, run } from "../sys/run.ts";
import type { UserNamespace } from "../spec/userns.ts";
import { makeOwnedNamespaces } from "./user_namespace.ts";

export type NamespaceKind = "net" | "ipc" | "uts" | "user";
export type PinnedNamespace = { path: string; inode: bigint };
export type PinnedNamespaces = Partial<Record<NamespaceKind, PinnedNamespace>> & {
  /** Sysctls of network interfaces, to be applied once the interfaces are there. */
  laterSysctls: Record<string, string>;
};

export type PinOptions = Partial<Record<NamespaceKind, string>> & {
  /** With user: its ids. The other namespaces belong to it then. */
  mappings?: UserNamespace;
  /** Only with uts; "" leaves the node's. */
  hostname: string;
  sysctls: Record<string, string>;
  signal: AbortSignal;
};

/** Where ip-netns(8) and everybody else looks for them. */
export const netnsFolder = "/var/run/netns";

/** The file of a pod's network namespace; instance: of the daemon's graph folder. */
export function netnsPath(instance: string, podId: string): string {
  return join(netnsFolder, `${netnsPrefix(instance)}${podId.slice(0, 32)}`);
}

/** How the names of one daemon's files begin. */
export function netnsPrefix(instance: string): string {
  return `isulad-${instance}-`;
}

const maxHostnameLength = 64;
const kinds: NamespaceKind[] = ["net", "ipc", "uts", "user"];

// $1 the loopback command, then pairs of file and value. A shell's own echo needs no further process.
const writeAll = `lo=$1; shift
while [ $# -gt 0 ]; do
  printf '%s' "$2" > "$1" || { echo "cannot write $2 to $1" >&2; exit 3; }
  shift 2
done
[ -z "$lo" ] || `;
const script = `${writeAll}exec $lo`;
const heldScript = `${writeAll}$lo || exit`;

/**
 * Makes the namespaces for which a file is given; on failure nothing stays.
 * @throws CriError INVALID_ARGUMENT for a sysctl outside these namespaces or one that the kernel
 * refuses, ALREADY_EXISTS when a file is there, else what the child said.
 */
export async function pinNamespaces(options: PinOptions): Promise<PinnedNamespaces> {
  const wanted = kinds.filter((kind) => options[kind] !== undefined);
  const { now, later } = splitSysctls(options.sysctls, wanted);
  if (wanted.length === 0) return { laterSysctls: {} };
  await using undo = new AsyncDisposableStack();
  for (const kind of wanted) {
    const path = options[kind]!;
    await createFile(path);
    undo.defer(() => unpinNamespace(path, { unlink: true }));
  }
  const writes = Object.entries(now).flat();
  const names = utsWrites(options, wanted);
  if (wanted.includes("user")) await makeOwned(options, writes, names);
  else await makePlain(options, [...writes, ...names]);
  const pinned: PinnedNamespaces = { laterSysctls: later };
  for (const kind of wanted) {
    const path = options[kind]!;
    pinned[kind] = { path, inode: statSync(path, { bigint: true }).ino };
  }
  undo.move();
  return pinned;
}

/** What names the pod, as pairs of file and value. */
function utsWrites({ hostname, sysctls }: PinOptions, wanted: NamespaceKind[]): string[] {
  if (!wanted.includes("uts")) return [];
  if (hostname.length > maxHostnameLength) {
    const length = `${hostname.length} characters; the kernel takes ${maxHostnameLength}`;
    throw new CriError("INVALID_ARGUMENT", `hostname ${hostname} has ${length}`);
  }
  const writes = hostname === "" ? [] : ["/proc/sys/kernel/hostname", hostname];
  for (const [key, value] of Object.entries(sysctls)) {
    if (namespaceOf(dotted(key)) === "uts") writes.push(sysctlPath(key), value);
  }
  return writes;
}

async function makePlain(options: PinOptions, writes: string[]): Promise<void> {
  const flags = kinds
    .filter((kind) => options[kind] !== undefined)
    .map((kind) => `--${kind}=${options[kind]}`);
  const lo = options.net === undefined ? "" : loopbackCommand();
  const command = ["sh", "-c", script, "sh", lo, ...writes];
  await runIn(["unshare", ...flags, "--"], command, options.signal);
}

/** names: only the node's root may write them, whoever the namespace belongs to. */
async function makeOwned(options: PinOptions, writes: string[], names: string[]): Promise<void> {
  const { net, ipc, uts, user, mappings, signal } = options;
  const lo = net === undefined ? "" : loopbackCommand();
  const made = await makeOwnedNamespaces({
    files: { user: user!, net, ipc, uts },
    mappings: mappings!,
    script: heldScript,
    args: [lo, ...writes],
    signal,
  });
  checkExit("unshare --user", made);
  if (names.length === 0) return;
  await runIn(["nsenter", `--uts=${uts}`, "--"], ["sh", "-c", script, "sh", "", ...names], signal);
}

/** Writes sysctls that pinNamespaces put off, after CNI has made the pod's interfaces. */
export async function applySysctls(
  netns: string,
  sysctls: Record<string, string>,
  signal: AbortSignal,
): Promise<void> {
  const writes = Object.entries(sysctls).flatMap(([key, value]) => [sysctlPath(key), value]);
  if (writes.length === 0) return;
  await runIn(
    ["nsenter", `--net=${netns}`, "--"],
    ["sh", "-c", script, "sh", "", ...writes],
    signal,
  );
}

async function runIn(prefix: string[], command: string[], signal: AbortSignal): Promise<void> {
  const result = await run([...prefix, ...command], { signal }).catch((error: unknown) => {
    if (codeOf(error) !== "NOT_FOUND") throw error;
    const hint = `${messageOf(error)}: install util-linux`;
    throw new CriError("FAILED_PRECONDITION", hint, { cause: error });
  });
  checkExit(prefix.join(" "), result);
}

function checkExit(what: string, result: { pid: number; exitCode: number; stderr: string }): void {
  const { pid, exitCode } = result;
  if (exitCode === 0) return;
  const said = failureOutput(result);
  const code = exitCode === 3 ? "INVALID_ARGUMENT" : "INTERNAL";
  throw new CriError(code, `${what} (pid ${pid}): ${said}`);
}

async function createFile(path: string): Promise<void> {
  const create = async () => (await open(path, "wx", 0o444)).close();
  try {
    await create().catch(async (error: unknown) => {
      if (errnoOf(error) !== "ENOENT") throw error;
      await mkdir(dirname(path), { recursive: true, mode: 0o755 });
      await create();
    });
  } catch (error) {
    const code = errnoOf(error) === "EEXIST" ? "ALREADY_EXISTS" : "INTERNAL";
    throw new CriError(code, `cannot make the namespace file ${path}: ${errnoOf(error)}`, {
      cause: error,
    });
  }
}

/** Sysctls that a namespace of its own gives its own value; all others are the node's. */
const ipcSysctl = /^(kernel\.(shm(max|all|mni|_rmid_forced)|msg(max|mnb|mni)|sem)|fs\.mqueue\..+)$/;
const sysctlFile = /^\/proc\/sys(\/[\w@:-][\w@:.-]*){2,}$/; // no segment is "..": it stays inside
const perInterface = /^net\.(ipv4|ipv6)\.(conf|neigh)\./;

/**
 * Sorts sysctls into those to write at once (by file) and those of interfaces (by name), which CNI
 * makes later and may set itself. Those of the uts namespace go with the hostname.
 * @throws CriError INVALID_ARGUMENT for one that would change the node.
 */
function splitSysctls(sysctls: Record<string, string>, wanted: NamespaceKind[]) {
  const now: Record<string, string> = {};
  const later: Record<string, string> = {};
  for (const [key, value] of Object.entries(sysctls)) {
    const path = sysctlPath(key);
    const kind = namespaceOf(dotted(key));
    if (kind === undefined || !sysctlFile.test(path)) {
      throw new CriError("INVALID_ARGUMENT", `sysctl ${key} belongs to no namespace of a pod`);
    }
    if (!wanted.includes(kind)) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `sysctl ${key} would change the node: the pod shares the node's ${kind} namespace`,
      );
    }
    if (perInterface.test(dotted(key))) later[key] = value;
    else if (kind !== "uts") now[path] = value;
  }
  return { now, later };
}

function namespaceOf(name: string): NamespaceKind | undefined {
  if (name.startsWith("net.")) return "net";
  if (name === "kernel.domainname") return "uts";
  return ipcSysctl.test(name) ? "ipc" : undefined;
}

/** Where the first separator is a slash, dots belong to names ("net/ipv4/conf/eth0.5/x"). */
function dotted(key: string): string {
  const slash = key.search(/[./]/);
  return key[slash] === "/" ? swapSeparators(key) : key;
}

function sysctlPath(key: string): string {
  return `/proc/sys/${swapSeparators(dotted(key))}`;
}

function swapSeparators(key: string): string {
  return key.replace(/[./]/g, (separator) => (separator === "." ? "/" : "."));
}

/** The first of ip, ifconfig and busybox that is installed, as a command for loopback. */
function loopbackCommand(): string {
  const dirs = [...(process.env["PATH"] ?? "").split(delimiter), "/usr/sbin", "/sbin", "/usr/bin"];
  const tools = [
    ["ip", "link set lo up"],
    ["ifconfig", "lo up"],
    ["busybox", "ifconfig lo up"],
  ] as const;
  for (const [tool, args] of tools) {
    for (const dir of dirs) {
      const path = join(dir, tool);
      try {
        if (dir === "" || /\s/.test(path)) continue;
        accessSync(path, constants.X_OK);
        return `${path} ${args}`;
      } catch {
        // the next folder
      }
    }
  }
  throw new CriError(
    "FAILED_PRECONDITION",
    "no program sets a pod's loopback up: install iproute2 (ip), net-tools or busybox",
  );
}

/** Unmounts the file (again, if it was pinned twice) and removes it when asked; a missing one is fine. */
export async function unpinNamespace(path: string, options: { unlink: boolean }): Promise<void> {
  try {
    while (isNamespaceFile(path)) unmount(path, MNT_DETACH);
  } catch (error) {
    throw new CriError("INTERNAL", `cannot unmount the namespace ${path}: ${errnoOf(error)}`, {
      cause: error,
    });
  }
  if (options.unlink) await removeFile(path);
}

/** Or an empty folder: some tools make one where they find nothing to mount on. */
async function removeFile(path: string): Promise<void> {
  try {
    await unlink(path);
  } catch (error) {
    const code = errnoOf(error);
    if (code === "ENOENT") return;
    if (code !== "EISDIR") throw error;
    await rmdir(path);
  }
}

/** Of the kernel's own file system for namespaces; all namespaces have one device. */
let namespaceDevice: bigint | undefined;

/** Whether a namespace is mounted on the file; of a missing file no. */
export function isNamespaceFile(path: string): boolean {
  return namespaceInode(path) !== undefined;
}

/** Whether the file still holds the namespace that was pinned there (within one boot). */
export function isPinned(path: string, inode: bigint): boolean {
  return namespaceInode(path) === inode;
}

// Asked at each call on a pod, so without leaving the thread: these files lie in memory.
function namespaceInode(path: string): bigint | undefined {
  if (path === "") return undefined;
  namespaceDevice ??= statSync("/proc/self/ns/net", { bigint: true }).dev;
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found?.dev === namespaceDevice ? found.ino : undefined;
}
