// Tests programs that a daemon was waiting for when SIGKILL ended it: the next one ends those that hang, with
// their descendants, and nothing else.
import { afterAll, afterEach, beforeAll, expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { hasEnded, lineageOf, startTime } from "../../src/sys/process.ts";
import { failure, until } from "../expect.ts";
import { busybox, Daemon } from "../harness.ts";
import { end, mountTmpfs } from "../host.ts";
import { busyboxImage } from "../image_maker.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";

let daemon: Daemon;
let registry: FakeRegistry;
let plugins: string;
let verifiers: string;

beforeAll(async () => {
  registry = await FakeRegistry.start();
  registry.put("team/app", "1", busyboxImage());
  daemon = new Daemon({});
  [plugins, verifiers] = [join(daemon.dir, "plugins"), join(daemon.dir, "verifiers")];
  for (const folder of [plugins, verifiers, daemon.cniDir]) mkdirSync(folder);
  mountTmpfs(join(daemon.dir, "state"));
  daemon.writeConfig({
    "cni-bin-dir": plugins,
    "image-verifier-dir": verifiers,
    "insecure-registries": [registry.host],
  });
  const list = { cniVersion: "1.0.0", name: daemon.token, plugins: [{ type: "slow" }] };
  writeFileSync(join(daemon.cniDir, "10-slow.conflist"), JSON.stringify(list));
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
});
afterEach(async () => {
  for (const pid of namedPids()) end(pid);
  for (const name of ["pids", "whole"]) rmSync(join(daemon.dir, name), { force: true });
  rmSync(join(verifiers, "check"), { force: true });
  await daemon.removeAllPods();
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

/** A shell's commands that hang, with a child that has left its session; both pids are in the file. */
const hang = () => `setsid sleep 600 & echo $$ $! > ${daemon.dir}/pids; exec sleep 600`;

function namedPids(): number[] {
  const file = join(daemon.dir, "pids");
  return existsSync(file)
    ? readFileSync(file, "utf8").split(/\s+/).filter(Boolean).map(Number)
    : [];
}

const records = () => readdirSync(join(daemon.dir, "state/programs"));

/** Waits for programs that name their pids. */
async function named(count: number): Promise<number[]> {
  await until(`${count} pids are in the file`, () => namedPids().length === count);
  return namedPids();
}

function writePlugin(add: string): void {
  const script = `#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n${add}\n`;
  writeFileSync(join(plugins, "slow"), script, { mode: 0o755 });
}

/** Begins a RunPodSandbox whose ADD does this; the daemon's end cuts it off. */
function addPod(add: string): void {
  writePlugin(add);
  failure(daemon.runPod(daemon.podConfig())).catch(() => {});
}

/** Begins a pull whose verifier hangs. */
function pullImage(): void {
  writeFileSync(join(verifiers, "check"), `#!/bin/sh\n${hang()}\n`, { mode: 0o755 });
  const image = { image: `${registry.host}/team/app:1` };
  failure(daemon.client.PullImage({ image })).catch(() => {});
}

test.each([
  ["a CNI plugin", () => addPod(hang())],
  ["an image verifier", pullImage],
])("%s that hangs is ended, with its child, and no container", async (_, begin) => {
  const pod = daemon.hostPodConfig();
  const id = await daemon.run(await daemon.runPod(pod), pod, ["sleep", "600"]);
  const others = [...daemon.monitors(), await daemon.pidOf(id)];
  const started = others.map(startTime);
  begin();
  const pids = await named(2);
  expect(pids.map(hasEnded)).toEqual([false, false]);
  const before = records();
  expect(before).not.toEqual([]);
  await daemon.restart("SIGKILL");
  expect(pids.map(hasEnded)).toEqual([true, true]);
  expect(others.map(startTime)).toEqual(started);
  expect((await daemon.exec(id, "echo on")).stdout).toBe("on\n");
  expect(records().filter((name) => before.includes(name))).toEqual([]);
});

test("a plugin that finishes within a second is not killed", async () => {
  addPod(`echo $$ > ${daemon.dir}/pids; sleep 0.7; echo done > ${daemon.dir}/whole`);
  const pids = await named(1);
  await daemon.restart("SIGKILL");
  expect(pids.map(hasEnded)).toEqual([true]);
  expect(existsSync(join(daemon.dir, "whole"))).toBe(true);
});

test("what a plugin has left behind on purpose goes on", async () => {
  const file = `${daemon.dir}/pids`;
  const result = '{"cniVersion":"1.0.0","ips":[{"address":"10.255.255.7/32"}]}';
  writePlugin(`setsid sleep 600 >&- 2>&- & echo $! > ${file}; echo '${result}'`);
  await daemon.runPod(daemon.podConfig());
  const [server] = namedPids();
  addPod(`echo $$ >> ${file}; exec sleep 600`);
  const [, hung] = await named(2);
  await daemon.restart("SIGKILL");
  expect([server!, hung!].map(hasEnded)).toEqual([false, true]);
});

test("a process that reuses the pid is not killed", async () => {
  addPod(`echo $$ > ${daemon.dir}/pids; exec sleep 600`);
  const [pid] = await named(1);
  await daemon.stop("SIGKILL");
  end(pid!);
  const other = await startAs(pid!);
  try {
    await daemon.start();
    expect(lineageOf(pid!)?.parent).toBe(process.pid);
    expect(hasEnded(pid!)).toBe(false);
  } finally {
    other[Symbol.dispose]();
  }
});

/** Starts a process that gets this pid once it is free; others take it now and then. */
async function startAs(pid: number): Promise<Disposable> {
  await until("the pid is free", () => startTime(pid) === undefined);
  for (let attempt = 0; attempt < 1000; attempt++) {
    writeFileSync("/proc/sys/kernel/ns_last_pid", String(pid - 1));
    const child = spawn("sleep", ["600"], { stdio: "ignore" });
    if (child.pid === pid) return { [Symbol.dispose]: () => void child.kill("SIGKILL") };
    child.kill("SIGKILL");
  }
  throw new Error(`no process got the pid ${pid}`);
}
