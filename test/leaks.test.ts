// Tests the leak checker: plants one leak of every kind, each of which must be found by its name.
import { afterAll, expect, test } from "bun:test";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import process from "node:process";
import { until } from "./expect.ts";
import { leaksBetween, leaksSince, type Scope, takeSnapshot } from "./leaks.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-leaks-"));
const token = basename(dir).toLowerCase();
for (const folder of ["graph", "state", "ipam/net"])
  mkdirSync(join(dir, folder), { recursive: true });
// Namespaces of other daemons come and go meanwhile.
writeFileSync(join(dir, "graph/isulad-ts.json"), '{"instance":"0123abcd"}');
const keeper = spawn("sh", [
  "-c",
  "echo ready; read line; exec 7</etc 8</etc 9</etc 6</etc; echo ready; sleep 600",
]);
const scope: Scope = {
  dir,
  kept: [join(dir, "graph"), join(dir, "state")],
  leases: join(dir, "ipam"),
  token,
  bridge: "brplanted",
  pids: () => [keeper.pid!],
};

/** Plants a leak; the returned function removes it. */
type Plant = { kind: string; plant: () => (() => void) | Promise<() => void> };

const plants: Plant[] = [
  { kind: "process", plant: plantProcess },
  { kind: "process", plant: plantCgroupProcess },
  { kind: "mount", plant: plantMount },
  { kind: "namespace file", plant: plantNamespace },
  { kind: "IP lease", plant: () => plantFile("ipam/net/10.9.8.7") },
  { kind: "cgroup", plant: plantCgroup },
  { kind: "FIFO", plant: plantFifo },
  { kind: "file", plant: () => plantFile("graph/folder", true) },
  { kind: "network link", plant: plantLink },
  { kind: "packet filter rule", plant: plantRule },
  { kind: "descriptor", plant: plantDescriptors },
];

afterAll(() => {
  keeper.kill("SIGKILL");
  rmSync(dir, { recursive: true, force: true });
});

test("planting leaks needs root", () => {
  expect(process.getuid!()).toBe(0);
});

test("leaksBetween() finds nothing when nothing happened", async () => {
  await new Promise((resolve) => keeper.stdout.once("data", resolve));
  expect(leaksBetween(takeSnapshot(scope), takeSnapshot(scope))).toEqual([]);
});

test("leaksBetween() leaves out a namespace of another daemon where the runtime has its own in its folder", () => {
  const own = { ...scope, netnsInDir: true };
  const before = takeSnapshot(own);
  const undo = plantNamespace();
  const found = leaksBetween(before, takeSnapshot(own));
  undo();
  expect(found).toEqual([]);
});

test("leaksBetween() leaves out a process that runs another program than before, as a runtime's init does", async () => {
  const env = { ...process.env, PLANTED: dir };
  const child = spawn("sh", ["-c", "echo ready; read line; exec sleep 600"], { env });
  try {
    await once(child.stdout, "data");
    const before = takeSnapshot(scope);
    child.stdin.end("go\n");
    const name = () => readFileSync(`/proc/${child.pid}/comm`, "utf8");
    await until("it runs sleep", () => name() === "sleep\n");
    const after = takeSnapshot(scope);
    expect([...after.things.process].join()).toContain(`${child.pid} sleep (started`);
    expect(leaksBetween(before, after)).toEqual([]);
  } finally {
    child.kill("SIGKILL");
    await once(child, "exit");
  }
});

test.each(plants)("leaksBetween() finds a planted $kind", async ({ kind, plant }) => {
  const before = takeSnapshot(scope);
  const undo = await plant();
  try {
    const found = leaksBetween(before, takeSnapshot(scope));
    expect(found.filter((line) => line.startsWith(`${kind}: `))).not.toEqual([]);
  } finally {
    undo();
  }
  if (kind !== "descriptor") expect(await leaksSince(before, scope)).toEqual([]);
});

function plantProcess(): () => void {
  const child = spawn("sleep", ["600"], { env: { ...process.env, PLANTED: dir } });
  return () => child.kill("SIGKILL");
}

function plantCgroupProcess(): () => void {
  const undo = plantCgroup();
  const child = spawn("sleep", ["600"]);
  writeFileSync(join(cgroupFolder(), "pod/cgroup.procs"), String(child.pid));
  return () => {
    writeFileSync(join(cgroupFolder(), "../cgroup.procs"), String(child.pid));
    child.kill("SIGKILL");
    undo();
  };
}

function cgroupFolder(): string {
  const v1 = readdirSync("/sys/fs/cgroup").includes("pids");
  return join("/sys/fs/cgroup", v1 ? "pids" : "", token);
}

function plantCgroup(): () => void {
  mkdirSync(join(cgroupFolder(), "pod"), { recursive: true });
  return () => {
    rmdirSync(join(cgroupFolder(), "pod"));
    rmdirSync(cgroupFolder());
  };
}

function plantMount(): () => void {
  const target = join(dir, "graph");
  execFileSync("mount", ["-t", "tmpfs", "planted", target]);
  return () => execFileSync("umount", [target]);
}

function plantNamespace(): () => void {
  const name = `isulad-0123abcd-${token}`;
  execFileSync("ip", ["netns", "add", name]);
  return () => execFileSync("ip", ["netns", "del", name]);
}

function plantFile(name: string, folder = false): () => void {
  const path = join(dir, name);
  if (folder) mkdirSync(path);
  else writeFileSync(path, "");
  return () => rmSync(path, { recursive: true });
}

function plantFifo(): () => void {
  execFileSync("mkfifo", [join(dir, "state/out")]);
  return () => rmSync(join(dir, "state/out"));
}

function plantLink(): () => void {
  const ip = (words: string) => execFileSync("ip", words.split(" "));
  ip("link add brplanted type bridge");
  ip("link add vethplanted type veth peer name vethplanted2");
  ip("link set vethplanted master brplanted");
  return () => {
    ip("link del vethplanted");
    ip("link del brplanted");
  };
}

function plantRule(): () => void {
  const rule = ["POSTROUTING", "-s", "192.0.2.9", "-m", "comment", "--comment", token];
  execFileSync("iptables", ["-t", "nat", "-A", ...rule, "-j", "RETURN"]);
  return () => execFileSync("iptables", ["-t", "nat", "-D", ...rule, "-j", "RETURN"]);
}

async function plantDescriptors(): Promise<() => void> {
  const again = new Promise((resolve) => keeper.stdout.once("data", resolve));
  keeper.stdin.write("\n");
  await again;
  return () => {};
}
