// OCI runtimes by their command line (runc ≥ 1.1, crun): what to call, and what a failure said.
import { messageOf } from "../base/errors.ts";
import type { RuntimeFacts } from "../spec/facts.ts";
import { readTextIfExists } from "../sys/file.ts";
import { run } from "../sys/process.ts";

/** An OCI runtime: program, arguments before the verb, its state folder, who manages cgroups. */
export type RuntimeCommand = {
  path: string;
  args: string[];
  root: string;
  systemdCgroup: boolean;
};

/** The call of one verb; the runtime tells its errors to logFile as JSON lines. */
export function runtimeArgv(runtime: RuntimeCommand, logFile: string, verb: string[]): string[] {
  const argv = [runtime.path, ...runtime.args, "--root", runtime.root];
  argv.push("--log", logFile, "--log-format", "json");
  if (runtime.systemdCgroup) argv.push("--systemd-cgroup");
  return [...argv, ...verb];
}

/** The last error in a runtime's log, or undefined when it told none. */
export async function runtimeError(logFile: string): Promise<string | undefined> {
  const text = (await readTextIfExists(logFile)) ?? "";
  let last: string | undefined;
  for (const line of text.split("\n")) {
    try {
      const entry = JSON.parse(line) as { level?: string; msg?: string };
      if (entry.level === "error" || entry.level === "fatal") last = entry.msg ?? last;
    } catch {
      // Not every runtime keeps to JSON in every message.
      if (line.trim() !== "") last = line.trim();
    }
  }
  return last;
}

type Features = {
  mountOptions?: string[];
  linux?: { mountExtensions?: { idmap?: { enabled?: boolean } } };
};

/** Asked once at start, so it may not hold it up. */
const probeMs = 5_000;

/** What `RUNTIME features` says (runtime-spec features.md; runc ≥ 1.1, crun ≥ 1.8). */
export async function probeRuntime(
  path: string,
): Promise<{ facts: RuntimeFacts; problem?: string }> {
  const none = { recursiveReadOnlyMounts: false, idmapMounts: false };
  try {
    const result = await run([path, "features"], { signal: AbortSignal.timeout(probeMs) });
    if (result.exitCode !== 0) return { facts: none };
    const features = JSON.parse(result.stdout) as Features;
    return {
      facts: {
        recursiveReadOnlyMounts: features.mountOptions?.includes("rro") === true,
        idmapMounts: features.linux?.mountExtensions?.idmap?.enabled === true,
      },
    };
  } catch (error) {
    return { facts: none, problem: `OCI runtime ${path} cannot be asked: ${messageOf(error)}` };
  }
}
