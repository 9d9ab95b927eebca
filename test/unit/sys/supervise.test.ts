// Tests supervised children: exit codes, deadlines, and the end of stderr.
import { expect, test } from "bun:test";
import { PassThrough } from "node:stream";
import { spawn } from "../../../src/sys/children.ts";
import { failureOutput, run } from "../../../src/sys/run.ts";
import { cannotRun, endWithin, keepEnd, superviseGroup } from "../../../src/sys/supervise.ts";
import type { ErrorCode } from "../../../src/base/errors.ts";
import { failure } from "../../expect.ts";

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
  const { stdout } = await run(["sh", "-c", "echo out; sleep 5 &"], { signal: soon() });
  expect(stdout).toBe("out\n");
  expect(performance.now() - begin).toBeLessThan(4_000);
});

test("run() keeps the first bytes of each stream", async () => {
  const options = { signal: soon(), maxOutputBytes: 3, input: "abcdef" };
  expect((await run(["sh", "-c", "cat; cat >&2 /dev/null; echo 123 >&2"], options)).stdout).toBe(
    "abc",
  );
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
