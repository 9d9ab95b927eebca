// Creates a pod's namespaces and pins them as files that containers join by path.
//
// Decision: unshare(1) of util-linux creates them, because the daemon must never enter a namespace itself
// (its engine's threads would stay there). The same child sets the hostname, writes the sysctls and brings
// loopback up, which saves the second process that the CNI loopback plugin would need.
// A pod with its own user namespace needs one more child (user_namespace.ts).
import { accessSync, constants, statSync } from "node:fs";
import { mkdir, open, rmdir, unlink } from "node:fs/promises";
import { delimiter, dirname, join } from "node:path";
import { CriError, codeOf, errnoOf, messageOf } from "../base/errors.ts";
import { MNT_DETACH } from "../sys/mount.ts";
import { unmountInThread } from "../sys/unmount_thread.ts";
import { failureOutput, run } from "../sys/run.ts";
import type { UserNamespace } from "../spec/userns.ts";
import { splitSysctls, sysctlPath } from "./namespace_sysctls.ts";
import { makeOwnedNamespaces } from "./user_namespace.ts";

export type NamespaceKind = "net" | "ipc" | "uts" | "user";
type PinnedNamespaces = Partial<Record<NamespaceKind, { path: string; inode: bigint }>> & {
  /** Sysctls of network interfaces, for applySysctls(). */
  laterSysctls: Record<string, string>;
};

export type PinOptions = Partial<Record<NamespaceKind, string>> & {
  /** The ids of the user namespace, which then owns the other namespaces. */
  mappings?: UserNamespace;
  /** Only with uts; "" keeps the node's hostname. */
  hostname: string;
  sysctls: Record<string, string>;
  signal: AbortSignal;
};

/** The folder that ip-netns(8) and other tools use. */
export const netnsFolder = "/var/run/netns";

/** The folders of the pods' network namespaces; the first is that of new pods. */
export function netnsFolders(config: { state: string; netnsUnderState: boolean }): string[] {
  const folders = [netnsFolder, join(config.state, "netns")];
  return config.netnsUnderState ? folders.toReversed() : folders;
}

/** Returns the name of a pod's network namespace; instance: that of the daemon's graph folder. */
export function netnsName(instance: string, podId: string): string {
  return `${netnsPrefix(instance)}${podId.slice(0, 32)}`;
}

/** Returns the common prefix of one daemon's file names. */
export function netnsPrefix(instance: string): string {
  return `isulad-${instance}-`;
}

const maxHostnameLength = 64;
const kinds: NamespaceKind[] = ["net", "ipc", "uts", "user"];

// $1: the loopback command, then pairs of file and value. The shell's builtin printf saves a process.
const writeAll = `lo=$1; shift
while [ $# -gt 0 ]; do
  printf '%s' "$2" > "$1" || { echo "cannot write $2 to $1" >&2; exit 3; }
  shift 2
done
[ -z "$lo" ] || `;
const script = `${writeAll}exec $lo`;
const scriptWithoutExec = `${writeAll}$lo || exit`;

/**
 * Creates the namespaces for which a file is given; on failure all are removed again.
 * @throws CriError INVALID_ARGUMENT for a sysctl outside these namespaces or one that the kernel refuses,
 * ALREADY_EXISTS when a file exists, else INTERNAL with the child's message.
 */
export async function pinNamespaces(options: PinOptions): Promise<PinnedNamespaces> {
  const wanted = kinds.filter((kind) => options[kind] !== undefined);
  const { now, uts, later } = splitSysctls(options.sysctls, wanted);
  if (wanted.length === 0) return { laterSysctls: {} };
  await using undo = new AsyncDisposableStack();
  for (const kind of wanted) {
    const path = options[kind]!;
    await createFile(path);
    undo.defer(() => unpinNamespace(path, { unlink: true }));
  }
  const writes = Object.entries(now).flat();
  const utsWrites = [...hostnameWrites(options), ...Object.entries(uts).flat()];
  if (wanted.includes("user")) await makeOwned(options, writes, utsWrites);
  else await makePlain(options, [...writes, ...utsWrites]);
  const pinned: PinnedNamespaces = { laterSysctls: later };
  for (const kind of wanted) {
    const path = options[kind]!;
    pinned[kind] = { path, inode: statSync(path, { bigint: true }).ino };
  }
  undo.move();
  return pinned;
}

/** Returns a pair of file and value, or nothing. */
function hostnameWrites({ uts, hostname }: PinOptions): string[] {
  if (uts === undefined) return [];
  if (hostname.length > maxHostnameLength) {
    const problem = `over the kernel's limit of ${maxHostnameLength} characters`;
    throw new CriError("INVALID_ARGUMENT", `hostname ${hostname} is ${problem}`);
  }
  return hostname === "" ? [] : ["/proc/sys/kernel/hostname", hostname];
}

async function makePlain(options: PinOptions, writes: string[]): Promise<void> {
  const made = kinds.filter((kind) => options[kind] !== undefined);
  const flags = made.map((kind) => `--${kind}=${options[kind]}`);
  const lo = options.net === undefined ? "" : loopbackCommand();
  const command = ["sh", "-c", script, "sh", lo, ...writes];
  await runIn(["unshare", ...flags, "--"], command, options.signal);
}

/** utsWrites: only the node's root may make these, even if a user namespace owns the uts namespace. */
async function makeOwned(pin: PinOptions, writes: string[], utsWrites: string[]): Promise<void> {
  const { net, ipc, uts, user, mappings, signal } = pin;
  const lo = net === undefined ? "" : loopbackCommand();
  const made = await makeOwnedNamespaces({
    files: { user: user!, net, ipc, uts },
    mappings: mappings!,
    script: scriptWithoutExec,
    args: [lo, ...writes],
    signal,
  });
  checkExit("unshare --user", made);
  if (utsWrites.length === 0) return;
  const command = ["sh", "-c", script, "sh", "", ...utsWrites];
  await runIn(["nsenter", `--uts=${uts}`, "--"], command, signal);
}

/** Writes the sysctls of interfaces (laterSysctls), once CNI has created the interfaces. */
export async function applySysctls(
  netns: string,
  sysctls: Record<string, string>,
  signal: AbortSignal,
): Promise<void> {
  const writes = Object.entries(sysctls).flatMap(([key, value]) => [sysctlPath(key), value]);
  if (writes.length === 0) return;
  const command = ["sh", "-c", script, "sh", "", ...writes];
  await runIn(["nsenter", `--net=${netns}`, "--"], command, signal);
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
  const code = exitCode === 3 ? "INVALID_ARGUMENT" : "INTERNAL";
  throw new CriError(code, `${what} (pid ${pid}): ${failureOutput(result)}`);
}

async function createFile(path: string): Promise<void> {
  const create = async () => (await open(path, "wx", 0o444)).close();
  try {
    await create().catch(async (error: unknown) => {
      if (errnoOf(error) !== "ENOENT") throw error;
      await mkdir(dirname(path), { recursive: true, mode: 0o755 });
      await create();
    });
  } catch (cause) {
    const code = errnoOf(cause) === "EEXIST" ? "ALREADY_EXISTS" : "INTERNAL";
    const message = `cannot create the namespace file ${path}: ${errnoOf(cause)}`;
    throw new CriError(code, message, { cause });
  }
}

/** Returns the command that brings loopback up: the first of ip, ifconfig and busybox that is installed. */
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
  const hint = "install iproute2 (ip), net-tools or busybox";
  throw new CriError("FAILED_PRECONDITION", `cannot bring up a pod's loopback: ${hint}`);
}

/** Unmounts the file, as often as it was mounted, and optionally removes it. Idempotent. */
export async function unpinNamespace(path: string, options: { unlink: boolean }): Promise<void> {
  try {
    while (isNamespaceFile(path))
      await unmountInThread(path, { flags: MNT_DETACH, kind: "memory" });
  } catch (cause) {
    const message = `cannot unmount the namespace ${path}: ${errnoOf(cause)}`;
    throw new CriError("INTERNAL", message, { cause });
  }
  if (options.unlink) await removeFile(path);
}

/** Removes a file or an empty directory: some tools create the latter as a mount point. */
async function removeFile(path: string): Promise<void> {
  try {
    await unlink(path);
  } catch (error) {
    if (errnoOf(error) === "EISDIR") await rmdir(path);
    else if (errnoOf(error) !== "ENOENT") throw error;
  }
}

/** Tells whether a namespace is this process's own: that of the node, for the kinds that pods have. */
export function isNodesNamespace(path: string, kind: "ipc" | "uts" | "pid"): boolean {
  const inode = namespaceInode(path);
  return inode !== undefined && inode === namespaceInode(`/proc/self/ns/${kind}`);
}

/** The device of nsfs, to which all namespaces belong. */
let namespaceDevice: bigint | undefined;

/** Tells whether a namespace is mounted on the file; false for a missing file. */
export function isNamespaceFile(path: string): boolean {
  return namespaceInode(path) !== undefined;
}

/** Tells whether the file still holds the namespace that was pinned there (within one boot). */
export function isPinned(path: string, inode: bigint): boolean {
  return namespaceInode(path) === inode;
}

// Synchronous, because each call on a pod needs it and nsfs is in memory.
function namespaceInode(path: string): bigint | undefined {
  if (path === "") return undefined;
  namespaceDevice ??= statSync("/proc/self/ns/net", { bigint: true }).dev;
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found?.dev === namespaceDevice ? found.ino : undefined;
}
