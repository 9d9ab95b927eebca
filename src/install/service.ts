// Starts and stops the installed daemon, asks it for its pods, and removes what it ran.
import { readlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { loadConfig } from "../base/config.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { cgroupFolders, cgroupMounts, removeCgroup } from "../node/cgroup.ts";
import { spawn } from "../sys/children.ts";
import { readKernelFile } from "../sys/file.ts";
import { childrenOf, executableOf, hasEnded, kill, processIds } from "../sys/process.ts";
import { configPath } from "./files.ts";
import { namesIn } from "./leftovers.ts";
import { exists, systemdRuns, type Target } from "./target.ts";

export const service = "isulad-ts";
const answerMs = 30_000;
const pollMs = 200;

/** The daemon's socket and folders by the configuration file, or the defaults if it is missing or wrong. */
export function daemonPlaces({ root }: Pick<Target, "root">): {
  host: string;
  graph: string;
  state: string;
} {
  try {
    const { hosts, graph, state } = loadConfig(join(root, configPath)).config;
    return { host: hosts[0]!, graph, state };
  } catch {
    const host = "unix:///var/run/isulad.sock";
    return { host, graph: "/var/lib/isulad", state: "/var/run/isulad" };
  }
}

/** Returns whether systemctl's `verb -q` succeeds; false where systemd does not run. */
export async function systemctlSays(target: Target, verb: string, name: string): Promise<boolean> {
  if (!systemdRuns(target)) return false;
  return await target.command(["systemctl", verb, "-q", name]).then(
    () => true,
    () => false,
  );
}

/** Runs a command of the installed program. */
export function client(target: Target, program: string, words: string[]): Promise<string> {
  return target.command([program, ...words], { ISULAD_HOST: daemonPlaces(target).host });
}

/** @throws CriError UNAVAILABLE with the end of the log. */
export async function waitForAnswer(target: Target, program: string): Promise<void> {
  const end = performance.now() + answerMs;
  for (;;) {
    try {
      await client(target, program, ["version"]);
      return;
    } catch (error) {
      if (performance.now() < end) {
        await sleep(pollMs);
        continue;
      }
      const words = ["journalctl", "-u", service, "--no-pager", "-n", "20"];
      const log = systemdRuns(target) ? await target.command(words).catch(messageOf) : "";
      throw new CriError("UNAVAILABLE", `the daemon does not answer: ${messageOf(error)}\n${log}`);
    }
  }
}

/** Starts the daemon without systemd's help; it outlives this process. */
function startAlone(program: string): void {
  const child = spawn(program, ["--config", configPath], { detached: true, stdio: "ignore" });
  child.on("error", () => {}); // the missing answer is reported
  child.unref();
}

/**
 * Tests for pods. Asks the daemon, or its records if it does not answer: a pod without processes has a network, too.
 * And looks for containers below the program's monitors: another daemon with folders of its own may run.
 */
export async function podsRun(target: Target, program: string): Promise<boolean> {
  if (target.root !== "" || !exists(target, program)) return false;
  const pods = await client(target, program, ["pods", "-q"]).catch(() =>
    namesIn(join(daemonPlaces(target).graph, "sandboxes")).join("\n"),
  );
  if (pods.trim() !== "") return true;
  return processesOf(program).some((pid) => isMonitor(pid) && childrenOf(pid).length > 0);
}

/**
 * Removes all pods, by a daemon that is started for it if need be.
 * @throws CriError FAILED_PRECONDITION with the pods that are left and the reasons.
 */
export async function removePods(target: Target, program: string): Promise<void> {
  try {
    await client(target, program, ["version"]);
  } catch {
    if (systemdRuns(target)) await target.command(["systemctl", "start", service]).catch(() => "");
    else startAlone(program);
  }
  try {
    await waitForAnswer(target, program);
    await client(target, program, ["rmp", "--all", "--force"]);
  } catch (cause) {
    const left = await client(target, program, ["pods"]).catch(() => "");
    const advice =
      "correct this and run the same again, or add --abandon-pods to leave them behind with their processes";
    const message = `not all pods were removed, so isulad-ts stays: ${messageOf(cause)}\n${left}${advice}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

/** Ends the daemon, then its monitor, which handles no SIGTERM because it must outlive the daemon. */
export async function endProcesses(program: string): Promise<void> {
  const pids = processesOf(program);
  const monitors = pids.filter(isMonitor);
  for (const pid of pids.filter((pid) => !monitors.includes(pid))) {
    kill(pid, "SIGTERM");
    if (!(await endsInTime(pid))) kill(pid);
  }
  for (const pid of monitors) {
    kill(pid);
    await endsInTime(pid);
  }
}

/** Removes the parent cgroup of pods that named none; one with processes stays. */
export async function removePodCgroup(target: Target): Promise<void> {
  if (systemdRuns(target))
    await target.command(["systemctl", "stop", "isulad.slice"]).catch(() => "");
  try {
    const paths = cgroupFolders(cgroupMounts(), "/isulad");
    await removeCgroup(paths, AbortSignal.timeout(pollMs));
  } catch (error) {
    target.report(`its cgroups stay: ${messageOf(error)}`);
  }
}

/**
 * Returns the ids of the processes that run a program, except this one and those of containers: a program in a
 * container's own file system may have the same path.
 */
export function processesOf(program: string): number[] {
  const own = pidNamespaceOf("self");
  return processIds().filter(
    (pid) => pid !== process.pid && runs(pid, program) && pidNamespaceOf(pid) === own,
  );
}

/** Its executable may have been replaced meanwhile. */
function runs(pid: number, program: string): boolean {
  return executableOf(pid)?.replace(/ \(deleted\)$/, "") === program;
}

function pidNamespaceOf(pid: number | "self"): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/pid`);
  } catch {
    return undefined; // the process has ended, or belongs to another user
  }
}

function isMonitor(pid: number): boolean {
  return readKernelFile(`/proc/${pid}/cmdline`)?.split("\0").includes("monitor") ?? false;
}

async function endsInTime(pid: number): Promise<boolean> {
  for (let waited = 0; waited < 5_000; waited += pollMs) {
    if (hasEnded(pid)) return true;
    await sleep(pollMs);
  }
  return false;
}
