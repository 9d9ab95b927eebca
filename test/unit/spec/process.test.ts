// Tests the arguments, the environment and the working folder of a container's process.
import { describe, expect, test } from "bun:test";
import { processArgs, processEnv, workingDir } from "../../../src/spec/process.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const image = { Entrypoint: ["/e"], Cmd: ["c"], Env: ["A=1", "BARE", "=x"], WorkingDir: "srv/" };
const bytes = (text: string) => Buffer.from(text);

describe("processArgs()", () => {
  test("combines command and args with Entrypoint and Cmd", () => {
    expect(processArgs({}, image)).toEqual(["/e", "c"]);
    expect(processArgs({ args: ["a"] }, image)).toEqual(["/e", "a"]);
    expect(processArgs({ command: ["x"] }, image)).toEqual(["x"]);
    expect(processArgs({ command: ["x"], args: ["a"] }, image)).toEqual(["x", "a"]);
  });

  test("an Entrypoint of one empty word is none", () => {
    const cleared = { Entrypoint: [""], Cmd: ["c"] };
    expect(processArgs({}, cleared)).toEqual(["c"]);
    expect(processArgs({ args: ["a"] }, cleared)).toEqual(["a"]);
    expect(codeAndMessage(() => processArgs({}, { Entrypoint: [""] }))).toContain("no command");
    expect(codeAndMessage(() => processArgs({}, { Entrypoint: ["", "x"] }))).toContain(
      "no command",
    );
  });

  test("rejects an empty command line and NUL characters", () => {
    expect(codeAndMessage(() => processArgs({}, {}))).toContain("no command to run");
    expect(codeAndMessage(() => processArgs({ command: [""] }, {}))).toContain("no command");
    expect(codeAndMessage(() => processArgs({ command: ["a\0b"] }, {}))).toContain("NUL");
  });
});

describe("processEnv()", () => {
  const env = (envs: { key: string; value: Uint8Array }[], tty = false) =>
    processEnv({ config: { envs, tty }, image, hostname: "h" });

  test("adds PATH, TERM and HOSTNAME, and lets later entries win", () => {
    expect(env([{ key: "A", value: bytes("2=3") }], true)).toEqual([
      "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
      "TERM=xterm",
      "HOSTNAME=h",
      "A=2=3",
      "BARE=",
    ]);
  });

  test("keeps non-ASCII text and a leading byte order mark, and rejects invalid UTF-8", () => {
    expect(env([{ key: "U", value: bytes("\ufeffžluťoučký") }])).toContain("U=\ufeffžluťoučký");
    const broken = [{ key: "B", value: Uint8Array.of(0xff, 0xfe) }];
    expect(codeAndMessage(() => env(broken))).toContain("variable B is not UTF-8");
  });

  test("rejects invalid names", () => {
    expect(codeAndMessage(() => env([{ key: "", value: bytes("1") }]))).toContain("not a valid");
    expect(codeAndMessage(() => env([{ key: "A=B", value: bytes("1") }]))).toContain('"A=B"');
    expect(codeAndMessage(() => env([{ key: "A", value: bytes("\0") }]))).toContain("NUL");
  });
});

test("workingDir() makes the image's absolute and rejects a relative one of CRI", () => {
  expect(workingDir({}, {})).toBe("/");
  expect(workingDir({}, image)).toBe("/srv");
  expect(workingDir({ working_dir: "/a/../b/" }, image)).toBe("/b");
  expect(codeAndMessage(() => workingDir({ working_dir: "b" }, image))).toContain('"b"');
});
