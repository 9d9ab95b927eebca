// What a pod may leave behind on a host, as sets that can be compared: taken before and after, the
// difference is a leak. Only what belongs to one daemon's scratch folder counts, so that other work
// on the machine does no harm.
import { spawnSync } from "node:child_process";
import { existsSync, lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { isGuest } from "./expect.ts";

/** Whose leaks are looked for. */
export type Scope = {
  /** The scratch folder that holds graph, state, IP leases and everything else of a daemon. */
  dir: string;
  /** Folders whose every file counts. */
  kept: string[];
  /** Files that the first container makes and no later one. */
  once?: string[];
  /** Folders of leases, as host-local's dataDir. */
  leases: string;
  /** Part of the name of every cgroup and CNI network of this daemon. */
  token: string;
  /** The bridge of its CNI network. */
  bridge: string;
  /** The long-lived processes; their descendants and descriptors count. */
  pids: () => number[];
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
  /** "pid 12 socket" → how many. */
  descriptors: Map<string, number>;
};

/**
 * Some come and go with timers and connections; a log thread brings its own once; the pipes of a child
 * that ended are sockets which Bun closes when it collects garbage. A leak grows with every pod: the
 * soak run sees it.
 */
const descriptorSlack = { socket: 40, anon_inode: 10, other: 3 };

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

/** One line for each thing that is there now and was not before. */
export function leaksBetween(before: Snapshot, after: Snapshot): string[] {
  const found = kinds.flatMap((kind) =>
    [...after.things[kind].difference(before.things[kind])].map((thing) => `${kind}: ${thing}`),
  );
  for (const [key, count] of after.descriptors) {
    const grown = count - (before.descriptors.get(key) ?? 0);
    const kind = (["socket", "anon_inode"] as const).find((one) => key.includes(one));
    const slack = descriptorSlack[kind ?? "other"];
    if (grown > slack) found.push(`descriptor: ${key}: ${grown} more`);
  }
  return found;
}

/** In an emulated guest what is done behind an answer takes its time too. */
const goneMs = isGuest ? 30_000 : 3_000;

/** What was there all the time while everything was given `withinMs` to go. */
export async function leaksSince(
  before: Snapshot,
  scope: Scope,
  withinMs = goneMs,
): Promise<string[]> {
  const end = Date.now() + withinMs;
  let stays = leaksBetween(before, takeSnapshot(scope));
  while (stays.length > 0 && Date.now() < end) {
    await sleep(100);
    // Namespace files bear no owner: one that came meanwhile is another daemon's.
    const now = leaksBetween(before, takeSnapshot(scope));
    const seen = new Set(stays.map(withoutCount));
    stays = now.filter((leak) => seen.has(withoutCount(leak)));
  }
  return stays;
}

function withoutCount(leak: string): string {
  return leak.replace(/: \d+ more$/, "");
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

/** What comes a second after a change beside its record, whose own file counts. */
function isSettled(path: string): boolean {
  const record = path.replace(/\.settled\.json(\.\w+\.tmp)?$/, ".json");
  return record !== path && existsSync(record);
}

/** Everything under a folder, without descending into other file systems (a mounted rootfs). */
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
  const mine =
    named || [...cgroups].some((path) => cgroup.includes(path.slice(path.lastIndexOf("/"))));
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

/** Whether a namespace file does not bear the name of this graph folder: isulad-<instance>-<pod>. */
function isForeign(name: string, scope: Scope): boolean {
  const instance = /^isulad-([0-9a-f]{8})-/.exec(name)?.[1];
  if (instance === undefined) return true; // somebody else's: no daemon gives such a name
  const own = /"instance":"(\w+)"/.exec(textOf(join(scope.dir, "graph/isulad-ts.json")))?.[1];
  return own !== undefined && instance !== own;
}

/** In every hierarchy of cgroup v1, v2 or both, under the daemon's own parent, which may stay. */
function cgroupsOf(token: string): string[] {
  const isOurs = (path: string) => path.includes(`${token}/`) || path.includes(`${token}.slice/`);
  return cgroupTops().flatMap(foldersIn).filter(isOurs);
}

/** Takes away the empty cgroups of a daemon that is gone, its parent too. */
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

/** The rules that CNI plugins make for one attachment: they carry the network's name. */
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
    if (!target.startsWith("/")) return target.replace(/:\[?\d+\]?$/, "");
    return existsSync(target) && lstatSync(target).isFIFO() ? "FIFO" : "file";
  } catch {
    return "gone";
  }
}

/** Kilobytes of memory that are a process's own share (PSS). */
export function pssKib(pid: number): number {
  return Number(/^Pss:\s+(\d+)/m.exec(textOf(`/proc/${pid}/smaps_rollup`))?.[1] ?? 0);
}
