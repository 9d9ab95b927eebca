// Tests how tests find a daemon's processes: a child that does not run its own program yet is none of them.
import { afterAll, afterEach, expect, test } from "bun:test";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { childrenOf } from "../../src/sys/process.ts";
import { until } from "../expect.ts";
import { processesOf } from "../host.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-host-"));
/** A shell in the place of the executable: between brackets it runs a copy of itself. */
const program = join(dir, "shell");
const fifo = join(dir, "fifo");
const copy = `(read line <${fifo}); true`;
const started: ChildProcess[] = [];
copyFileSync("/bin/sh", program);
execFileSync("mkfifo", [fifo]);

afterEach(async () => {
  for (const { pid } of started.splice(0)) process.kill(-pid!, "SIGKILL");
  await until("all have ended", () => processesOf(program, { dir, except: -1 }).length === 0);
});
afterAll(() => {
  rmSync(dir, { recursive: true, force: true });
});

function run(script: string): number {
  const child = spawn(program, ["-c", script, "daemon"], { detached: true, stdio: "ignore" });
  started.push(child);
  return child.pid!;
}

async function childOf(pid: number): Promise<number> {
  await until("it has a child", () => childrenOf(pid).length === 1);
  return childrenOf(pid)[0]!;
}

test("processesOf() leaves out a child that is still a copy of the daemon", async () => {
  const daemon = run(copy);
  await childOf(daemon);
  expect(processesOf(program, { dir, except: daemon })).toEqual([]);
});

test("processesOf() returns the daemon's monitor without a child that is still its copy", async () => {
  const daemon = run(`${program} -c '${copy}' monitor; true`);
  const monitor = await childOf(daemon);
  await childOf(monitor);
  expect(processesOf(program, { dir, except: daemon })).toEqual([monitor]);
});

test("processesOf() leaves out a helper of the daemon where monitors are wanted", async () => {
  const daemon = run(`${program} -c 'read line <${fifo}; true' unpack; true`);
  const helper = await childOf(daemon);
  const all = { dir, except: daemon };
  await until("it runs", () => processesOf(program, all).includes(helper));
  const monitors = { dir, except: daemon, argument: "monitor" };
  expect(processesOf(program, monitors)).toEqual([]);
});

test("processesOf() returns only the monitor while its children come and go", async () => {
  // A busy loop in a session of its own: it ends with this process, however that ends.
  const loop = "do for n in 1 2 3 4 5 6 7 8; do (:) & done; wait; done";
  const monitor = run(`while kill -0 ${process.pid}; ${loop}`);
  await until("it runs", () => processesOf(program, { dir, except: -1 }).includes(monitor));
  for (let looks = 0; looks < 100; looks++)
    expect(processesOf(program, { dir, except: -1 })).toEqual([monitor]);
}, 120_000);
