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

/** True when a process runs `program` for this folder. */
function serves(pid: number, program: string, dir: string): boolean {
  try {
    const running = readlinkSync(`/proc/${pid}/exe`).replace(" (deleted)", "");
    const facts = ["cmdline", "environ"].map((name) =>
      readFileSync(`/proc/${pid}/${name}`, "utf8"),
    );
    return basename(running) === basename(program) && facts.some((text) => text.includes(dir));
  } catch {
    return false; // It ended meanwhile.
  }
}

/** Returns the processes that run `program` for this folder. */
export function processesOf(program: string, about: { dir: string; except: number }): number[] {
  const found = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && Number(name) !== about.except)
    .map(Number)
    .filter((pid) => serves(pid, program, about.dir));
  // A child that does not run its own program yet looks like its parent.
  return found.filter((pid) => !found.includes(parentOf(pid)));
}

/** Returns 0 for a process that has ended. */
function parentOf(pid: number): number {
  try {
    return Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]);
  } catch {
    return 0;
  }
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
