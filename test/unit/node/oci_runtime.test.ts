// Tests the arguments and the errors of the OCI runtime.
import { afterAll, expect, test } from "bun:test";
import { appendFileSync, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { callRuntime, runtimeArgv, runtimeError } from "../../../src/node/oci_runtime.ts";
import { failure } from "../../expect.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-runtime-"));
const logFile = join(folder, "log");
afterAll(() => rmSync(folder, { recursive: true }));
const runtime = { path: "/bin/runc", args: ["--debug"], root: "/run/r", systemdCgroup: false };

test("runtimeArgv() adds --systemd-cgroup only for the systemd driver", () => {
  const argv = "/bin/runc --debug --root /run/r --log /l --log-format json";
  expect(runtimeArgv(runtime, "/l", ["kill", "c"]).join(" ")).toBe(`${argv} kill c`);
  const systemd = runtimeArgv({ ...runtime, systemdCgroup: true }, "/l", ["kill", "c"]);
  expect(systemd.join(" ")).toBe(`${argv} --systemd-cgroup kill c`);
});

test("runtimeArgv() keeps the keyring of a container that is created, where that is asked for", () => {
  const verbs = (more: object) =>
    [
      ["create", "--bundle", "/b", "c"],
      ["start", "c"],
    ].map((verb) =>
      runtimeArgv({ ...runtime, ...more }, "/l", verb)
        .slice(8)
        .join(" "),
    );
  expect(verbs({ noNewKeyring: true })).toEqual([
    "create --no-new-keyring --bundle /b c",
    "start c",
  ]);
  expect(verbs({ noNewKeyring: false })).toEqual(["create --bundle /b c", "start c"]);
});

test.each([
  ["an empty log", "", undefined],
  ["no errors", '{"level":"warning","msg":"w"}\n', undefined],
  ["two errors", '{"level":"error","msg":"a"}\n{"level":"fatal","msg":"b"}\n', "b"],
  ["an error before a warning", '{"level":"error","msg":"a"}\n{"level":"info","msg":"i"}\n', "a"],
  ["plain text", " panic \n", "panic"],
])("runtimeError() of %s", async (_, text, message) => {
  writeFileSync(logFile, text);
  expect(await runtimeError(logFile)).toBe(message);
});

test("runtimeError() reads only the end of a log", async () => {
  const line = `${JSON.stringify({ level: "error", msg: "first" })}\n`;
  writeFileSync(logFile, `${line}${"{}\n".repeat(100 << 10)}`);
  expect(await runtimeError(logFile)).toBeUndefined();
  appendFileSync(logFile, line);
  expect(await runtimeError(logFile)).toBe("first");
});

test("callRuntime() throws the runtime's message and removes the log", async () => {
  const signal = AbortSignal.timeout(10_000);
  const shell = (script: string) => ({ ...runtime, path: "/bin/sh", args: ["-c", script, "sh"] });
  await callRuntime(shell("exit 0"), ["kill"], { logFile, signal });
  const log = 'echo \'{"level":"error","msg":"no such container"}\' > "$4"; exit 1';
  const error = await failure(callRuntime(shell(log), ["kill"], { logFile, signal }));
  expect(error).toMatchObject({ code: "UNKNOWN", message: "/bin/sh kill: no such container" });
  expect(existsSync(logFile)).toBe(false);
});
