// Tests executes(), giveWay() and run() on real processes.
import { expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync, readlinkSync, realpathSync } from "node:fs";
import { getPriority } from "node:os";
import { join } from "node:path";
import { executes, giveWay, offerToOomKiller } from "../../src/sys/process.ts";
import { run } from "../../src/sys/run.ts";

test("executes() returns when the process executes another program", async () => {
  const script = "read go; sleep 0.05; exec sleep 60";
  const child = spawn("sh", ["-c", script], { stdio: ["pipe", "ignore", "inherit"] });
  await once(child, "spawn");
  const exe = () => readlinkSync(`/proc/${child.pid}/exe`);
  const shell = exe();
  await executes(child.pid!, async () => void child.stdin.write("\n"), 30_000);
  expect(shell).toBe(realpathSync("/bin/sh"));
  expect(exe()).toBe(realpathSync("/bin/sleep"));
  child.kill("SIGKILL");
});

test("executes() does not wait for ever", async () => {
  const child = spawn("sleep", ["60"]);
  await once(child, "spawn");
  await executes(child.pid!, () => Promise.resolve());
  expect(child.exitCode).toBeNull();
  child.kill("SIGKILL");
});

test("giveWay() is of all that a process begins later, and of none that has ended", async () => {
  const child = spawn("sh", ["-c", "read go; nice"], { stdio: ["pipe", "pipe", "inherit"] });
  giveWay(child.pid!, getPriority() + 3);
  child.stdin.end("\n");
  let said = "";
  child.stdout.on("data", (chunk: Buffer) => (said += chunk.toString()));
  await once(child, "close");
  expect(Number(said)).toBe(getPriority() + 3);
  expect(() => giveWay(child.pid!, 10)).not.toThrow();
});

test("giveWay() and offerToOomKiller() do not throw when no descriptor is left", () => {
  const room = join(import.meta.dirname, "../../src/sys");
  const program = `
    import { openSync } from "node:fs";
    import { giveWay, offerToOomKiller } from "${room}/process.ts";
    giveWay(process.pid, 1); // loads libc
    try {
      for (;;) openSync("/dev/null", "r");
    } catch (error) {
      giveWay(process.pid, 10);
      offerToOomKiller(process.pid);
      process.exit(error.code === "EMFILE" ? 42 : 1);
    }`;
  const argv = ["-c", 'ulimit -n 200; exec "$0" -e "$1"', process.execPath, program];
  const { status, stderr } = spawnSync("sh", argv, { encoding: "utf8" });
  expect({ status, stderr }).toEqual({ status: 42, stderr: "" });
});

test("run() lets the kernel take an expendable program, and what it starts, first for memory", async () => {
  const signal = AbortSignal.timeout(60_000);
  const own = readFileSync("/proc/self/oom_score_adj", "utf8");
  // The parent writes it once the program runs.
  const script = `until grep -qx 1000 /proc/$$/oom_score_adj; do sleep 0.05; done; cat /proc/self/oom_score_adj`;
  const expendable = run(["sh", "-c", script], { signal, isExpendable: true });
  expect((await expendable).stdout).toBe("1000\n");
  const argv = ["sh", "-c", "sleep 0.5; cat /proc/self/oom_score_adj"];
  const { pid, stdout } = await run(argv, { signal });
  expect(stdout).toBe(own);
  expect(() => offerToOomKiller(pid)).not.toThrow();
});
