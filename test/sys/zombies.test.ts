// Tests that a subreaper reaps orphaned zombies and leaves the children that the engine waits for.
import { afterAll, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { setImmediate, setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { spawn } from "../../src/sys/children.ts";
import { Orphans } from "../../src/sys/zombies.ts";
import { isZombie } from "../../src/sys/process.ts";
import { run } from "../../src/sys/run.ts";
import { check } from "../../src/sys/libc.ts";
import { becomeSubreaper } from "../../src/sys/wait.ts";

becomeSubreaper();
// All files share this process: the others' orphans are the init's to reap.
afterAll(() => void check("prctl", "PR_SET_CHILD_SUBREAPER", 36, 0, 0, 0, 0));

/** Keeps the event loop from its work, as a slow disk or a busy machine does. */
function stallUntil(done: () => boolean): void {
  const end = performance.now() + 5000;
  while (!done() && performance.now() < end)
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
}

test("Orphans.reap() leaves the engine its children, however late it is", async () => {
  const child = spawn("sh", ["-c", "exit 3"], {});
  const exit = new Promise((resolve) => child.once("exit", resolve));
  stallUntil(() => isZombie(child.pid!));
  const orphans = new Orphans();
  for (let look = 0; look < 3; look++) orphans.reap(() => false);
  expect(await exit).toBe(3);
});

async function leftBehind(): Promise<number> {
  const signal = AbortSignal.timeout(60_000);
  const { stdout } = await run(["sh", "-c", "sleep 0.05 >/dev/null 2>&1 & echo $!"], { signal });
  const pid = Number(stdout);
  while (!isZombie(pid)) await sleep(10);
  return pid;
}

test("Orphans.reap() takes at the second look what a child left behind", async () => {
  const pid = await leftBehind();
  const orphans = new Orphans();
  orphans.reap(() => false);
  expect(isZombie(pid)).toBe(true);
  orphans.reap(() => false);
  expect(existsSync(`/proc/${pid}`)).toBe(false);
});

test("Orphans.reap() leaves what may be a start's whose pid is not known yet, and takes older ones", async () => {
  const old = await leftBehind();
  const orphans = new Orphans();
  orphans.reap(() => false);
  const start = performance.now();
  const young = await leftBehind();
  for (let look = 0; look < 3; look++) orphans.reap(() => false, start);
  expect(existsSync(`/proc/${old}`)).toBe(false);
  expect(isZombie(young)).toBe(true);
  orphans.reap(() => false);
  expect(existsSync(`/proc/${young}`)).toBe(false);
});

test("Orphans.reap() does not mind threads that end while it looks", async () => {
  const orphans = new Orphans();
  const end = performance.now() + 1500;
  let looks = 0;
  while (performance.now() < end || looks <= 10) {
    const workers = Array.from({ length: 4 }, () => new Worker("", { eval: true }));
    const ended = new Set<Worker>();
    for (const worker of workers) worker.once("exit", () => ended.add(worker));
    for (; ended.size < workers.length; looks++) {
      orphans.reap(() => false);
      await setImmediate();
    }
  }
  expect(looks).toBeGreaterThan(10);
});
