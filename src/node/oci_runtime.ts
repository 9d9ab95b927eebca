// Calls OCI runtimes by their command line (runc ≥ 1.1, crun) and reads their error messages.
import { rm } from "node:fs/promises";
import { CriError } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import { printable, shorten } from "../base/text.ts";
import { readTextEnd } from "../sys/file.ts";
import { failureOutput, run } from "../sys/run.ts";

/** An OCI runtime: program, arguments before the verb, state folder, and whether systemd manages cgroups. */
export type RuntimeCommand = {
  path: string;
  args: string[];
  root: string;
  systemdCgroup: boolean;
  /** The runtime's containers keep the monitor's session keyring. */
  noNewKeyring?: boolean | undefined;
  /** The owner of the streams of containers without a user namespace of their own. */
  streamOwner?: { uid: number; gid: number };
  /** Folders for criu's images, before they are archived, and for its work files and log. */
  criu?: { images?: string | undefined; work?: string | undefined };
  /** Set where `path` is a shim v2 executable, which runs the containers (src/shim). */
  shim?: ShimSettings;
};

export type ShimSettings = {
  /** io.containerd.X.Y, which names the executable containerd-shim-X-Y. */
  type: string;
  /** A configuration file of the shim's (runtimeoptions.v1.Options, config_path); "": none. */
  configPath: string;
  /** Options of runc's shim by their names in containerd.runc.v1.Options, such as binary_name. */
  options: Record<string, string | number | boolean>;
};

/** Returns the command line of one verb; the runtime writes errors to logFile as JSON lines. */
export function runtimeArgv(runtime: RuntimeCommand, logFile: string, verb: string[]): string[] {
  const argv = [runtime.path, ...runtime.args, "--root", runtime.root];
  argv.push("--log", logFile, "--log-format", "json");
  if (runtime.systemdCgroup) argv.push("--systemd-cgroup");
  const [name = "", ...rest] = verb;
  const keepsKeyring = runtime.noNewKeyring === true && name === "create";
  return [...argv, name, ...(keepsKeyring ? ["--no-new-keyring"] : []), ...rest];
}

const messageBytesMax = 4_000;
/** The error that ends a runtime is at the end of its log. */
const logBytesMax = 256 << 10;

/** Returns the last error in a runtime's log, or undefined. */
export async function runtimeError(logFile: string): Promise<string | undefined> {
  const text = (await readTextEnd(logFile, logBytesMax)) ?? "";
  let last: string | undefined;
  for (const line of text.split("\n")) {
    try {
      const entry = jsonValue(line) as { level?: string; msg?: string };
      if (entry.level === "error" || entry.level === "fatal") last = String(entry.msg ?? last);
    } catch {
      // Some runtimes print some messages as plain text.
      if (line.trim() !== "") last = line.trim();
    }
  }
  return last === undefined ? undefined : shorten(printable(last), messageBytesMax);
}

/**
 * Runs a verb that starts no process in a container (the monitor runs those) and waits for its exit.
 * @throws CriError UNKNOWN with the runtime's message, DEADLINE_EXCEEDED or CANCELLED.
 */
export async function callRuntime(
  runtime: RuntimeCommand,
  verb: string[],
  { logFile, signal }: { logFile: string; signal: AbortSignal },
): Promise<void> {
  try {
    const result = await run(runtimeArgv(runtime, logFile, verb), { signal });
    if (result.exitCode === 0) return;
    const message = (await runtimeError(logFile)) ?? failureOutput(result);
    throw new CriError("UNKNOWN", `${runtime.path} ${verb[0]}: ${message}`);
  } finally {
    await rm(logFile, { force: true });
  }
}
