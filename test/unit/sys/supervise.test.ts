// Tests supervised children: exit codes, deadlines, and the end of stderr.
import { expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { readdirSync } from "node:fs";
import { PassThrough } from "node:stream";
import { spawn } from "../../../src/sys/children.ts";
import { failureOutput, run } from "../../../src/sys/run.ts";
import { cannotRun, endWithin, keepEnd, superviseGroup } from "../../../src/sys/supervise.ts";
import type { ErrorCode } from "../../../src/base/errors.ts";
import { failure, until } from "../../expect.ts";

const soon = () => AbortSignal.timeout(20_000);

function shell(script: string) {
  return spawn("sh", ["-c", script], { stdio: "ignore", detached: true });
}

test.each([
  ["exit 3", 3],
  ["kill -KILL $$", 137],
  ["kill -SEGV $$", 139],
])("superviseGroup() of `%s` returns %i", async (script, exitCode) => {
  expect(await superviseGroup(shell(script), "sh", soon())).toBe(exitCode);
});

test("superviseGroup() kills the group at the deadline and says what was killed", async () => {
  const child = shell("sleep 60 & wait");
  const { code, message } = await failure(
    superviseGroup(child, "sh script", AbortSignal.timeout(50)),
  );
  expect(code).toBe("DEADLINE_EXCEEDED");
  expect(message).toStartWith(`sh script (pid ${child.pid})`);
  expect(child.signalCode).toBe("SIGKILL");
});

test("run() does not wait for a grandchild that keeps the output open", async () => {
  const begin = performance.now();
  const { stdout } = await run(["sh", "-c", "echo out; sleep 30 &"], { signal: soon() });
  expect(stdout).toBe("out\n");
  expect(performance.now() - begin).toBeLessThan(15_000);
});

test("run() keeps the first bytes of each stream", async () => {
  const options = { signal: soon(), maxOutputBytes: 3, input: "abcdef" };
  expect((await run(["sh", "-c", "cat; cat >&2 /dev/null; echo 123 >&2"], options)).stdout).toBe(
    "abc",
  );
});

test("run() gives pipes, which a script may open by their paths", async () => {
  const script = "cat /dev/stdin; echo out >/dev/stdout; echo err >/dev/stderr; [ -p /dev/stdin ]";
  const { exitCode, stdout, stderr } = await run(["sh", "-c", script], {
    signal: soon(),
    input: "in\n",
  });
  expect({ exitCode, stdout, stderr }).toEqual({
    exitCode: 0,
    stdout: "in\nout\n",
    stderr: "err\n",
  });
});

test("run() moves more than pipes hold, both ways at once", async () => {
  const input = randomBytes(3 << 20).toString("base64");
  const options = { signal: soon(), input, maxOutputBytes: 8 << 20 };
  const { stdout, stderr } = await run(["sh", "-c", "tee /dev/stderr"], options);
  expect([stdout === input, stderr === input]).toEqual([true, true]);
});

test.each(["exec <&-; sleep 0.1; echo out", "head -c 5; echo; sleep 0.1"])(
  "run() of `%s`, which does not read all its input, ends by its exit code",
  async (script) => {
    const input = Buffer.alloc(2 << 20, 97);
    expect((await run(["sh", "-c", `${script}; exit 3`], { signal: soon(), input })).exitCode).toBe(
      3,
    );
  },
);

test("run() has all that a program wrote before it exits, and a little later by its children", async () => {
  const script = "(sleep 0.01; echo late) & head -c 60000 /dev/zero";
  const { stdout } = await run(["sh", "-c", script], { signal: soon() });
  expect([stdout.length, stdout.slice(-5)]).toEqual([60_005, "late\n"]);
});

test("run() ends a program that floods either stream", async () => {
  for (const script of ["yes", "yes >&2", "head -c 3000000 /dev/zero"]) {
    const options = { signal: soon(), floodBytes: 1 << 20 };
    const { code } = await failure(run(["sh", "-c", script], options));
    expect(code).toBe("RESOURCE_EXHAUSTED");
  }
});

test("run() leaves no descriptor open", async () => {
  const count = () => readdirSync("/proc/self/fd").length;
  const begin = count();
  for (const script of ["exit 0", "sleep 5 & exit 1", "kill -KILL $$"])
    await run(["sh", "-c", script], { signal: soon(), input: "x" });
  await failure(run(["isulad-no-such-program"], { signal: soon(), input: "x" }));
  await failure(run(["sleep", "9"], { signal: AbortSignal.timeout(50), input: "x" }));
  await until("all are closed", () => count() <= begin);
});

test("run() of no program is NOT_FOUND", async () => {
  const { code, message } = await failure(run(["isulad-no-such-program"], { signal: soon() }));
  expect({ code, message: message.slice(0, 33) }).toEqual({
    code: "NOT_FOUND",
    message: "cannot run isulad-no-such-program",
  });
});

test.each([
  [{ exitCode: 2, stdout: " ", stderr: "" }, "exit code 2"],
  [{ exitCode: 2, stdout: "out\n", stderr: "" }, "out"],
  [{ exitCode: 2, stdout: "out\n", stderr: "err\n" }, "err"],
])("failureOutput(%j) is %j", (result, text) => expect(failureOutput(result)).toBe(text));

test("endWithin() kills only what does not end in time", async () => {
  let kills = 0;
  await endWithin(Promise.resolve(), 1, () => kills++);
  await Bun.sleep(5);
  expect(kills).toBe(0);
  const ended = Promise.withResolvers<void>();
  await endWithin(ended.promise, 1, () => {
    kills++;
    ended.resolve();
  });
  expect(kills).toBe(1);
});

test("keepEnd() keeps the end of a stream", async () => {
  const stream = new PassThrough();
  const end = keepEnd(stream, 9);
  stream.write("first ");
  stream.end("second");
  await Bun.sleep(1);
  expect(end()).toEndWith("second");
  expect(end()).not.toContain("first");
});

test.each([
  ["EMFILE", "RESOURCE_EXHAUSTED"],
  ["ENOMEM", "RESOURCE_EXHAUSTED"],
  ["EAGAIN", "RESOURCE_EXHAUSTED"],
  ["EACCES", "INTERNAL"],
])("cannotRun() of a program that %s keeps from starting is %s", (code, expected) => {
  const cause = Object.assign(new Error("no"), { code });
  expect(cannotRun("runc", cause, "INTERNAL").code).toBe(expected as ErrorCode);
});
