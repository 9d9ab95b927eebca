// Inspects and cleans this machine for tests: mounts, processes, crash reports and cgroups.
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { basename, join } from "node:path";
import process from "node:process";

/** True on a node with cgroup v2 alone. */
export const isV2 = existsSync("/sys/fs/cgroup/cgroup.controllers");

/** Mounts a tmpfs on the folder, as /var/run is one on every node. */
export function mountTmpfs(folder: string): void {
  mkdirSync(folder);
  execFileSync("mount", ["-t", "tmpfs", "-o", "mode=711", "tmpfs", folder]);
}

export function freeSubnet(): string {
  const used = execFileSync("ip", ["-4", "-o", "addr"], { encoding: "utf8" });
  for (;;) {
    const subnet = `10.${100 + Math.floor(Math.random() * 150)}.${Math.floor(Math.random() * 256)}`;
    if (!used.includes(`inet ${subnet}.`)) return subnet;
  }
}

/** A process that looks as if it ran a program for a folder. */
type Candidate = { pid: number; parent: number; command: string };

/** argument: an argument of the processes, such as the name of their command. */
type About = { dir: string; except: number; argument?: string };

/** Returns undefined for a process that does not run `program` for this folder, or has ended. */
function candidate(pid: number, program: string, { dir, argument }: About): Candidate | undefined {
  try {
    if (!runs(pid, program)) return undefined;
    // The parent is read now: once the process has ended, it has none.
    const parent = parentOf(pid);
    const command = textOf(pid, "cmdline");
    if (argument !== undefined && !command.split("\0").includes(argument)) return undefined;
    const isForFolder = command.includes(dir) || textOf(pid, "environ").includes(dir);
    // Once more: the command line may be that of a program which it has begun to run meanwhile.
    return isForFolder && runs(pid, program) ? { pid, parent, command } : undefined;
  } catch {
    return undefined; // It ended meanwhile.
  }
}

/** Returns the processes that run `program` for this folder. */
export function processesOf(program: string, about: About): number[] {
  const found = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((name) => candidate(Number(name), program, about))
    .filter((one) => one !== undefined);
  const byPid = new Map(found.map((one) => [one.pid, one]));
  // A child has the executable and the arguments of its parent until it runs its own program.
  const isChild = ({ parent, command }: Candidate) =>
    byPid.has(parent) && (parent !== about.except || byPid.get(parent)!.command === command);
  return found.filter((one) => one.pid !== about.except && !isChild(one)).map(({ pid }) => pid);
}

function runs(pid: number, program: string): boolean {
  const running = readlinkSync(`/proc/${pid}/exe`).replace(" (deleted)", "");
  return basename(running) === basename(program);
}

function textOf(pid: number, name: string): string {
  return readFileSync(`/proc/${pid}/${name}`, "utf8");
}

function parentOf(pid: number): number {
  return Number(/^PPid:\s+(\d+)/m.exec(textOf(pid, "status"))![1]);
}

export function end(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // It exited by itself.
  }
}

/** Unmounts everything below a folder, the latest first. */
export function unmountUnder(folder: string): void {
  const targets = readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .map((line) => line.split(" ")[4]!)
    .filter((target) => target?.startsWith(`${folder}/`));
  for (const target of targets.toReversed()) spawnSync("umount", ["-l", target]);
}

/** Prints a process's crash report: lines of its log that are not log lines, or that mention a crash. */
export function tellLastWords(logs: string[]): void {
  const framed = /^\S+ (?:ERROR|WARN |INFO |DEBUG) |^\{"/;
  const crashed = /ERROR the monitor failed/;
  for (const log of logs.filter((file) => existsSync(file))) {
    const lines = readFileSync(log, "utf8").split("\n");
    const words = lines.filter((line) => line !== "" && (!framed.test(line) || crashed.test(line)));
    if (words.length > 0) console.error(`${log}:\n${words.join("\n")}`);
  }
}

/** Creates cgroups in every hierarchy, as a kubelet does with cgroupfs. Returns them, top first. */
export function makeCgroups(paths: string[]): string[] {
  const top = "/sys/fs/cgroup";
  const hierarchies = isV2
    ? [top]
    : readdirSync(top)
        .map((name) => join(top, name))
        .filter((path) => existsSync(join(path, "cgroup.procs")));
  const all = hierarchies.flatMap((hierarchy) => paths.map((path) => join(hierarchy, path)));
  for (const path of all) mkdirSync(path);
  return all;
}
