// Resolves the host path of a mount, creating a missing directory.
//
// Decision: on a file system that may hang (NFS, CIFS, FUSE) a child process resolves the path, with a
// deadline. The engine's file calls share a few threads: two containers with volumes of an unreachable
// server would block the creation of all others.
import { mkdir, realpath } from "node:fs/promises";
import { CriError, codeOf, errnoOf, messageOf } from "../base/errors.ts";
import type { Mount } from "../proto/types.ts";
import { mountName } from "../spec/mounts.ts";
import { remoteDisk } from "../sys/disk.ts";
import type { MountEntry } from "../sys/mount_table.ts";
import { failureOutput, run } from "../sys/run.ts";

type Options = {
  table: MountEntry[];
  /** Refuse a missing path instead of creating a directory. */
  rejectMissing: boolean;
  signal: AbortSignal;
};

/** Returns the real path. @throws CriError naming the mount; DEADLINE_EXCEEDED when its file system hangs. */
export async function mountSource(mount: Mount, options: Options): Promise<string> {
  const { table, rejectMissing } = options;
  const hostPath = mount.host_path ?? "";
  const disk = remoteDisk(hostPath, table);
  const what = `${mountName(mount)}: host_path`;
  try {
    if (disk !== undefined) return await resolveInChild(hostPath, options);
    if (!rejectMissing) {
      await mkdir(hostPath, { recursive: true, mode: 0o755 }).catch((error: unknown) => {
        if (errnoOf(error) !== "EEXIST") throw error;
      });
    }
    return await realpath(hostPath);
  } catch (cause) {
    const code = codeOf(cause);
    if (disk !== undefined && (code === "DEADLINE_EXCEEDED" || code === "CANCELLED")) {
      const device = `${disk.type} of ${disk.source} on ${disk.point}`;
      const message = `${what} ${hostPath}: its file system (${device}) does not answer: ${messageOf(cause)}`;
      throw new CriError(code, message, { cause });
    }
    const missing = errnoOf(cause) === "ENOENT" || code === "NOT_FOUND";
    const hint = rejectMissing && missing ? " (reject-missing-mount-sources is set)" : "";
    throw new CriError("FAILED_PRECONDITION", `${what}: ${messageOf(cause)}${hint}`, { cause });
  }
}

/** $1: the absolute path; $2: "make" to create a missing one. */
const script = `[ -e "$1" ] || { [ "$2" = make ] && umask 022 && mkdir -p "$1"; } || { ls -d "$1"; exit 1; }
exec realpath "$1"`;

async function resolveInChild(path: string, { rejectMissing, signal }: Options): Promise<string> {
  const argv = ["sh", "-c", script, "sh", path, rejectMissing ? "" : "make"];
  const env = { PATH: process.env["PATH"] ?? "/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL: "C" };
  const result = await run(argv, { signal, env });
  if (result.exitCode === 0) return result.stdout.slice(0, -1);
  const message = failureOutput(result);
  throw new CriError(/No such file/.test(message) ? "NOT_FOUND" : "FAILED_PRECONDITION", message);
}
