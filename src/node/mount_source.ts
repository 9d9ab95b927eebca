// Where what a container mounts lies on the host.
//
// Decision: on a disk that may not answer (NFS, CIFS, FUSE) a child process looks, with a deadline. The
// engine looks with a few threads, which all files share: two containers with a volume of a server that is
// gone would keep every other one from being made.
import { mkdir, realpath } from "node:fs/promises";
import { CriError, codeOf, errnoOf, messageOf } from "../base/errors.ts";
import type { Mount } from "../proto/types.ts";
import { mountName } from "../spec/mounts.ts";
import { remoteDisk } from "../sys/disk.ts";
import type { MountEntry } from "../sys/mount_table.ts";
import { failureOutput, run } from "../sys/run.ts";

type Options = {
  table: MountEntry[];
  /** Refuse what is missing, instead of making a folder. */
  rejectMissing: boolean;
  signal: AbortSignal;
};

/** With links followed. @throws CriError naming the mount; DEADLINE_EXCEEDED when its disk does not answer. */
export async function mountSource(mount: Mount, options: Options): Promise<string> {
  const { table, rejectMissing } = options;
  const hostPath = mount.host_path ?? "";
  const disk = remoteDisk(hostPath, table);
  const what = `${mountName(mount)}: host_path`;
  try {
    if (disk !== undefined) return await lookFromChild(hostPath, options);
    if (!rejectMissing) {
      await mkdir(hostPath, { recursive: true, mode: 0o755 }).catch((error: unknown) => {
        if (errnoOf(error) !== "EEXIST") throw error;
      });
    }
    return await realpath(hostPath);
  } catch (cause) {
    const code = codeOf(cause);
    if (disk !== undefined && (code === "DEADLINE_EXCEEDED" || code === "CANCELLED")) {
      const where = `${disk.type} of ${disk.source} on ${disk.point}`;
      const message = `${what} ${hostPath}: its disk (${where}) does not answer: ${messageOf(cause)}`;
      throw new CriError(code, message, { cause });
    }
    const missing = errnoOf(cause) === "ENOENT" || code === "NOT_FOUND";
    const hint = rejectMissing && missing ? " (reject-missing-mount-sources is set)" : "";
    throw new CriError("FAILED_PRECONDITION", `${what}: ${messageOf(cause)}${hint}`, { cause });
  }
}

/** $1: the path, absolute; $2: "make" where it is to be made. */
const script = `[ -e "$1" ] || { [ "$2" = make ] && umask 022 && mkdir -p "$1"; } || { ls -d "$1"; exit 1; }
exec realpath "$1"`;

async function lookFromChild(path: string, { rejectMissing, signal }: Options): Promise<string> {
  const argv = ["sh", "-c", script, "sh", path, rejectMissing ? "" : "make"];
  const env = { PATH: process.env["PATH"] ?? "/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL: "C" };
  const result = await run(argv, { signal, env });
  if (result.exitCode === 0) return result.stdout.slice(0, -1);
  const message = failureOutput(result);
  throw new CriError(/No such file/.test(message) ? "NOT_FOUND" : "FAILED_PRECONDITION", message);
}
