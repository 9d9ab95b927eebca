// Finds leaks: takes everything that a pod may leave on a host as sets, before and after, and compares them.
// Only objects of one daemon's scratch folder count, so that other work on the machine does no harm.
import { spawnSync } from "node:child_process";
import { existsSync, lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";

/** The daemon whose leaks are searched for. */
export type Scope = {
  /** The scratch folder that holds graph, state, IP leases and everything else of a daemon. */
  dir: string;
  /** Folders in which every file counts. */
  kept: string[];
  /** Files that only the first container creates. */
  once?: string[];
  /** Folders of IP leases: host-local's dataDir. */
  leases: string;
  /** Part of the name of every cgroup and CNI network of this daemon. */
  token: string;
  /** The bridge of its CNI network. */
  bridge: string;
  /** The long-lived processes; their descendants and descriptors count. */
  pids: () => number[];
  /** True for a runtime whose namespace files are below dir: those in /run/netns are another daemon's. */
  netnsInDir?: boolean;
};

const kinds = [
  "process",
  "mount",
  "namespace file",
  "IP lease",
  "cgroup",
  "FIFO",
  "file",
  "network link",
  "packet filter rule",
] as const;
type Kind = (typeof kinds)[number];

export type Snapshot = {
  things: Record<Kind, Set<string>>;
  /** "pid 12 socket" → count. */
  descriptors: Map<string, number>;
};

/**
 * Tolerance for descriptors: some belong to timers and connections, a log thread opens its own once, and the
 * pipes of an exited child are sockets that Bun closes at garbage collection. Each log thread has a pipe. The sampler opens six files of a
 * cgroup when it first sees it. A leak grows with every pod, which the soak run detects.
 */
const descriptorSlack = { socket: 40, anon_inode: 10, "cgroup file": 12, pipe: 8, other: 3 };

/** Returns how many descriptors there are in all. */
export function descriptorsIn({ descriptors }: Snapshot): number {
  return [...descriptors.values()].reduce((sum, count) => sum + count, 0);
}

export function takeSnapshot(scope: Scope): Snapshot {
  const all = scope.kept.flatMap(walk).filter((path) => !scope.once?.includes(path));
  const files = all.filter((path) => !isSettled(path));
  const cgroups = cgroupsOf(scope.token);
  return {
    things: {
      process: processesOf(scope, new Set(cgroups)),
      mount: mountsOf(scope),
      "namespace file": new Set(entries("/run/netns").filter((name) => !isForeign(name, scope))),
      "IP lease": new Set(walk(scope.leases).filter((path) => /\/[\d.]+$|\/[\da-f:]+$/.test(path))),
      cgroup: new Set(cgroups),
      FIFO: new Set(walk(scope.dir).filter((path) => statOf(path)?.isFIFO())),
      file: new Set(files),
      "network link": new Set(entries(`/sys/class/net/${scope.bridge}/brif`)),
      "packet filter rule": rulesOf(scope.token),
    },
    descriptors: descriptorsOf(scope.pids()),
  };
}

/** Takes the descriptors of these processes alone, which is quick. */
export function takeDescriptors(pids: number[]): Snapshot {
  const none = kinds.map((kind) => [kind, new Set<string>()] as const);
  const things = Object.fromEntries(none) as Snapshot["things"];
  return { things, descriptors: descriptorsOf(pids) };
}

/** Returns a line for each object that exists now and did not before. */
export function leaksBetween(before: Snapshot, after: Snapshot): string[] {
  const found = kinds.flatMap((kind) => {
    const known = new Set([...before.things[kind]].map(withoutName));
    const more = [...after.things[kind]].filter((thing) => !known.has(withoutName(thing)));
    return more.map((thing) => `${kind}: ${thing}`);
  });
  const pids = new Set([...before.descriptors.keys()].map(pidOf));
  for (const [key, count] of after.descriptors) {
    if (!pids.has(pidOf(key))) continue; // of a process that has been started since
    const grown = count - (before.descriptors.get(key) ?? 0);
    const kind = (["socket", "anon_inode", "cgroup file", "pipe"] as const).find((one) =>
      key.includes(one),
    );
    const slack = descriptorSlack[kind ?? "other"];
    if (grown > slack) found.push(`descriptor: ${key}: ${grown} more`);
  }
  return found;
}

/** Of a descriptor's key. */
const pidOf = (key: string) => key.split(" ")[1];

/** Background work is slow on a loaded machine. */
const goneMs = 30_000;

/** Returns the leaks that still exist after `withinMs`. */
export async function leaksSince(
  before: Snapshot,
  scope: Scope,
  withinMs = goneMs,
): Promise<string[]> {
  const end = Date.now() + withinMs;
  let stays = leaksBetween(before, takeSnapshot(scope));
  while (stays.length > 0 && Date.now() < end) {
    await sleep(100);
    // Namespace files have no owner: a new one may be another daemon's.
    const now = leaksBetween(before, takeSnapshot(scope));
    const seen = new Set(stays.map(identityOf));
    stays = now.filter((leak) => seen.has(identityOf(leak)));
  }
  return stays;
}

function identityOf(leak: string): string {
  return withoutName(leak.replace(/: \d+ more$/, ""));
}

/** A process has another name once it runs another program, as a runtime's init does just after the start. */
function withoutName(thing: string): string {
  return thing.replace(/(\d+) .*?((?:, a zombie)? \(started \d+\))$/, "$1$2");
}

function entries(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function statOf(path: string): ReturnType<typeof lstatSync> {
  return lstatSync(path, { throwIfNoEntry: false });
}

/** Files that write-behind creates a second after a change; the record's own file counts instead. */
function isSettled(path: string): boolean {
  const record = path.replace(/\.settled\.json(\.\w+\.tmp)?$/, ".json");
  return record !== path && existsSync(record);
}

/** Lists everything below a folder, without other file systems (a mounted rootfs). */
function walk(folder: string): string[] {
  const device = statOf(folder)?.dev;
  const found: string[] = [];
  const open = [folder];
  for (let at = open.pop(); at !== undefined; at = open.pop()) {
    for (const name of entries(at)) {
      const path = join(at, name);
      const stat = statOf(path);
      if (stat === undefined) continue;
      found.push(path);
      if (stat.isDirectory() && stat.dev === device) open.push(path);
    }
  }
  return found;
}

function textOf(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

type ProcessFacts = { pid: number; parent: number; key: string; mine: boolean };

function processesOf(scope: Scope, cgroups: Set<string>): Set<string> {
  const all = entries("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((name) => processFacts(Number(name), scope, cgroups))
    .filter((facts) => facts !== undefined);
  const family = new Set(scope.pids());
  const parents = new Map(all.map((facts) => [facts.pid, facts.parent]));
  const found = new Set<string>();
  for (const facts of all) {
    if (facts.pid === process.pid || family.has(facts.pid)) continue;
    if (facts.mine || hasAncestor(facts.pid, family, parents)) found.add(facts.key);
  }
  return found;
}

function processFacts(pid: number, scope: Scope, cgroups: Set<string>): ProcessFacts | undefined {
  const stat = textOf(`/proc/${pid}/stat`);
  const [state, parent] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  if (parent === undefined) return undefined;
  const name = stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")"));
  const startTime = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
  const places = ["cmdline", "environ"].map((file) => textOf(`/proc/${pid}/${file}`));
  const cgroup = textOf(`/proc/${pid}/cgroup`);
  const named = places.some((text) => text.includes(scope.dir)) || cgroup.includes(scope.token);
  const parts = new Set(cgroup.split(/[/\n]/));
  const mine =
    named || [...cgroups].some((path) => parts.has(path.slice(path.lastIndexOf("/") + 1)));
  return {
    pid,
    parent: Number(parent),
    key: `${pid} ${name}${state === "Z" ? ", a zombie" : ""} (started ${startTime})`,
    mine,
  };
}

function hasAncestor(pid: number, family: Set<number>, parents: Map<number, number>): boolean {
  for (let at = parents.get(pid); at !== undefined && at > 1; at = parents.get(at)) {
    if (family.has(at)) return true;
  }
  return false;
}

function mountsOf(scope: Scope): Set<string> {
  const found = new Set<string>();
  for (const line of textOf("/proc/self/mountinfo").split("\n")) {
    const [left, right] = line.split(" - ");
    const [id, , , , target] = left!.split(" ");
    const netns = /^(?:\/var)?\/run\/netns\/(.*)$/.exec(target ?? "")?.[1];
    const isNamespace =
      netns !== undefined && right?.startsWith("nsfs") && !isForeign(netns, scope);
    if (target?.startsWith(`${scope.dir}/`) || isNamespace) found.add(`${target} (mount ${id})`);
  }
  return found;
}

/** True when a namespace file belongs to another graph folder: isulad-<instance>-<pod>. */
function isForeign(name: string, scope: Scope): boolean {
  const instance = /^isulad-([0-9a-f]{8})-/.exec(name)?.[1];
  if (instance === undefined || scope.netnsInDir) return true; // somebody else's: no daemon gives such a name
  const own = /"instance":"(\w+)"/.exec(textOf(join(scope.dir, "graph/isulad-ts.json")))?.[1];
  return own !== undefined && instance !== own;
}

/** Lists cgroups in every hierarchy (v1, v2 or both) below the daemon's parent cgroup, which may stay. */
function cgroupsOf(token: string): string[] {
  const isOurs = (path: string) => path.includes(`${token}/`) || path.includes(`${token}.slice/`);
  return cgroupTops().flatMap(foldersIn).filter(isOurs);
}

/** Removes the empty cgroups of a daemon that has ended, including its parent cgroup. */
export function removeCgroups(token: string): void {
  for (const slice of new Set(cgroupsOf(token).filter((path) => path.endsWith(".slice")))) {
    spawnSync("systemctl", ["stop", slice.slice(slice.lastIndexOf("/") + 1)]);
  }
  const tops = cgroupTops().flatMap((top) => [join(top, token), join(top, `${token}.slice`)]);
  for (const top of tops) {
    for (const path of [...foldersIn(top).toReversed(), top])
      spawnSync("rmdir", [path], { stdio: "ignore" });
  }
}

function cgroupTops(): string[] {
  return textOf("/proc/self/mountinfo")
    .split("\n")
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(" ")[4]!);
}

function foldersIn(folder: string): string[] {
  const found: string[] = [];
  const open = [folder];
  for (let at = open.pop(); at !== undefined; at = open.pop()) {
    try {
      for (const entry of readdirSync(at, { withFileTypes: true })) {
        if (!entry.isDirectory()) continue;
        found.push(join(at, entry.name));
        open.push(join(at, entry.name));
      }
    } catch {
      continue; // It went meanwhile.
    }
  }
  return found;
}

/** Lists the firewall rules of CNI attachments: they contain the network's name. */
function rulesOf(token: string): Set<string> {
  const rules = ["nat", "filter"].map((table) =>
    spawnSync("iptables-save", ["-t", table], { encoding: "utf8" }),
  );
  const lines = rules.flatMap((done) => (done.stdout ?? "").split("\n"));
  return new Set(lines.filter((line) => line.includes(token)));
}

function descriptorsOf(pids: number[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const pid of pids) {
    for (const fd of entries(`/proc/${pid}/fd`)) {
      const key = `pid ${pid} ${descriptorKind(`/proc/${pid}/fd/${fd}`)}`;
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
  }
  return counts;
}

function descriptorKind(link: string): string {
  try {
    const target = readlinkSync(link);
    if (target.startsWith("/sys/fs/cgroup/")) return "cgroup file";
    if (!target.startsWith("/")) return target.replace(/:\[?\d+\]?$/, "");
    return existsSync(target) && lstatSync(target).isFIFO() ? "FIFO" : "file";
  } catch {
    return "gone";
  }
}

/** Returns a process's proportional share of memory (PSS) in KiB. */
export function pssKib(pid: number): number {
  return memoryKib(pid, "Pss");
}

/** Returns a figure of /proc/PID/smaps_rollup in KiB; 0 for a process that has ended. */
export function memoryKib(pid: number, name: "Pss" | "Private_Dirty"): number {
  const text = textOf(`/proc/${pid}/smaps_rollup`);
  return Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(text)?.[1] ?? 0);
}
