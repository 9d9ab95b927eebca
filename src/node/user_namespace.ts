// Creates namespaces that a new user namespace owns. One unshare(1) cannot create and pin them, because a
// process in the user namespace may not mount on the node. So a child creates them and waits, while the
// daemon, which enters none of them, writes the id maps and pins /proc/PID/ns.
import { createInterface } from "node:readline";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { idMapText, type UserNamespace } from "../spec/userns.ts";
import { spawn } from "../sys/children.ts";
import { writeKernelFile } from "../sys/file.ts";
import { MS_BIND, mount } from "../sys/mount.ts";
import { killGroup } from "../sys/process.ts";
import { cannotRun, keepEnd, superviseGroup } from "../sys/supervise.ts";

/** The existing files on which to pin each namespace. */
type OwnedNamespaces = { user: string; net?: string; ipc?: string; uts?: string };

type OwnedOptions = {
  files: OwnedNamespaces;
  mappings: UserNamespace;
  /** A shell script with its arguments, run as the new root in all of the namespaces. */
  script: string;
  args: string[];
  signal: AbortSignal;
};

// Keeps its capabilities, because the new root does not exist before the id map. $1: the options of the
// second unshare, $2: its script.
const childScript = `echo unshared; read -r _ || exit 1
flags=$1 script=$2; shift 2
exec unshare $flags --setgid 0 --setuid 0 -- sh -c "$script
echo done; read -r _" sh "$@"`;

const stderrBytesMax = 4_096;

/**
 * Creates and pins the namespaces. @returns the exit code and stderr of the child.
 * @throws CriError DEADLINE_EXCEEDED or CANCELLED with the signal, else when a step of the daemon fails.
 */
export async function makeOwnedNamespaces(
  options: OwnedOptions,
): Promise<{ pid: number; exitCode: number; stderr: string }> {
  const { files, signal } = options;
  const what = "unshare --user";
  throwIfAborted(what, signal);
  const kinds = (["net", "ipc", "uts"] as const).filter((kind) => files[kind] !== undefined);
  const flags = kinds.map((kind) => `--${kind}`).join(" ");
  const shell = ["sh", "-c", childScript, "sh", flags, options.script, ...options.args];
  const child = spawn("unshare", ["--user", "--keep-caps", "--", ...shell], {
    stdio: ["pipe", "pipe", "pipe"],
    env: process.env,
    detached: true,
  });
  const exited = superviseGroup(child, what, signal);
  const stderr = keepEnd(child.stderr, stderrBytesMax);
  child.stdin.on("error", () => {}); // the child has exited; its exit code is checked below
  const lines = createInterface({ input: child.stdout });
  // If superviseGroup() has to close a stdout that a process keeps open, only closing the lines ends the loop below.
  exited.finally(() => lines.close()).catch(() => {}); // awaited below
  try {
    for await (const line of lines) {
      if (line === "unshared") mapIds(child.pid!, options.mappings);
      if (line === "done") pin(child.pid!, files);
      child.stdin.write("\n");
    }
  } catch (error) {
    if (child.pid !== undefined && child.exitCode === null) killGroup(child.pid);
    if (signal.aborted) await exited; // throws the reason
    throw error;
  }
  const exitCode = await exited.catch((cause: unknown) => {
    throw cannotRun("unshare", cause, "FAILED_PRECONDITION");
  });
  return { pid: child.pid!, exitCode, stderr: stderr().trim() };
}

function mapIds(pid: number, { uidMappings, gidMappings }: UserNamespace): void {
  try {
    writeKernelFile(`/proc/${pid}/uid_map`, idMapText(uidMappings));
    writeKernelFile(`/proc/${pid}/gid_map`, idMapText(gidMappings));
  } catch (cause) {
    const ids = `uids ${idMapText(uidMappings)}, gids ${idMapText(gidMappings)}`;
    const message = `cannot write the id map of a user namespace (${ids}): ${messageOf(cause)}`;
    throw new CriError("INVALID_ARGUMENT", message, { cause });
  }
}

function pin(pid: number, files: OwnedNamespaces): void {
  for (const [kind, path] of Object.entries(files)) {
    if (path !== undefined) mount(`/proc/${pid}/ns/${kind}`, path, "", MS_BIND);
  }
}
