// Namespaces that belong to a user namespace of their own. One unshare(1) cannot make and pin them:
// once it is in the user namespace it may mount nothing here. So a child makes them and waits, and the
// daemon, which enters none of them, writes the id maps and pins what it finds under /proc/PID/ns.
import { createInterface } from "node:readline";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { clip } from "../base/text.ts";
import { idMapText, type UserNamespace } from "../spec/userns.ts";
import { spawn } from "../sys/children.ts";
import { writeKernelFile } from "../sys/file.ts";
import { MS_BIND, mount } from "../sys/mount.ts";
import { killGroup } from "../sys/process.ts";

/** Where each namespace is to be pinned; the files exist. */
export type OwnedNamespaces = { user: string; net?: string; ipc?: string; uts?: string };

export type OwnedOptions = {
  files: OwnedNamespaces;
  mappings: UserNamespace;
  /** Run as the new root in all of them: a shell's script and its arguments ($1 and on). */
  script: string;
  args: string[];
  signal: AbortSignal;
};

// The capabilities are kept, for the new root does not exist before its map does. $1 the options of
// the second unshare, $2 what it runs.
const holder = `echo unshared; read -r _ || exit 1
flags=$1 script=$2; shift 2
exec unshare $flags --setgid 0 --setuid 0 -- sh -c "$script
echo done; read -r _" sh "$@"`;

const stderrBytesMax = 4_096;

/**
 * Makes and pins them. @returns the exit code and messages of the child: 0, or what the script said.
 * @throws CriError DEADLINE_EXCEEDED or CANCELLED with the signal, INTERNAL when a step here failed.
 */
export async function makeOwnedNamespaces(
  options: OwnedOptions,
): Promise<{ pid: number; exitCode: number; stderr: string }> {
  const { files, signal } = options;
  const what = "unshare --user";
  throwIfAborted(what, signal);
  const kinds = (["net", "ipc", "uts"] as const).filter((kind) => files[kind] !== undefined);
  const flags = kinds.map((kind) => `--${kind}`).join(" ");
  const child = spawn(
    "unshare",
    ["--user", "--keep-caps", "--", "sh", "-c", holder, "sh", flags, options.script].concat(
      options.args,
    ),
    { stdio: ["pipe", "pipe", "pipe"], env: process.env, detached: true },
  );
  const ended = new Promise<number>((resolve, reject) => {
    child.on("error", (cause) =>
      reject(
        new CriError("FAILED_PRECONDITION", `cannot run unshare: ${cause.message}`, { cause }),
      ),
    );
    child.on("close", (code) => resolve(code ?? 137));
  });
  ended.catch(() => {}); // awaited below
  const kill = () => {
    if (child.pid !== undefined && child.exitCode === null) killGroup(child.pid);
  };
  signal.addEventListener("abort", kill, { once: true });
  let stderr = "";
  child.stderr.on("data", (text: Buffer) => {
    stderr = clip(stderr + text.toString(), stderrBytesMax);
  });
  child.stdin.on("error", () => {}); // it has ended; the exit code tells
  try {
    for await (const line of createInterface({ input: child.stdout })) {
      if (line === "unshared") mapIds(child.pid!, options.mappings);
      if (line === "done") pin(child.pid!, files);
      child.stdin.write("\n");
    }
  } catch (error) {
    kill();
    if (signal.aborted) throw abortError(what, signal);
    throw error;
  } finally {
    signal.removeEventListener("abort", kill);
  }
  const exitCode = await ended;
  if (signal.aborted) throw abortError(what, signal);
  return { pid: child.pid!, exitCode, stderr: stderr.trim() };
}

function mapIds(pid: number, { uidMappings, gidMappings }: UserNamespace): void {
  try {
    writeKernelFile(`/proc/${pid}/uid_map`, idMapText(uidMappings));
    writeKernelFile(`/proc/${pid}/gid_map`, idMapText(gidMappings));
  } catch (cause) {
    const ids = idMapText(uidMappings);
    const message = `cannot map a user namespace's ids (${ids}): ${messageOf(cause)}`;
    throw new CriError("INVALID_ARGUMENT", message, { cause });
  }
}

function pin(pid: number, files: OwnedNamespaces): void {
  for (const [kind, path] of Object.entries(files)) {
    if (path !== undefined) mount(`/proc/${pid}/ns/${kind}`, path, "", MS_BIND);
  }
}
