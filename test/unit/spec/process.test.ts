import { describe, expect, test } from "bun:test";
import { processArgs, processEnv, workingDir } from "../../../src/spec/process.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const image = { Entrypoint: ["/e"], Cmd: ["c"], Env: ["A=1", "BARE", "=x"], WorkingDir: "srv/" };
const bytes = (text: string) => Buffer.from(text);

describe("processArgs()", () => {
  test("combines command and args with Entrypoint and Cmd as CRI says", () => {
    expect(processArgs({}, image)).toEqual(["/e", "c"]);
    expect(processArgs({ args: ["a"] }, image)).toEqual(["/e", "a"]);
    expect(processArgs({ command: ["x"] }, image)).toEqual(["x"]);
    expect(processArgs({ command: ["x"], args: ["a"] }, image)).toEqual(["x", "a"]);
  });

  test("refuses an empty command line and NUL characters", () => {
    expect(codeAndMessage(() => processArgs({}, {}))).toContain("no command to run");
    expect(codeAndMessage(() => processArgs({ command: [""] }, {}))).toContain("no command");
    expect(codeAndMessage(() => processArgs({ command: ["a\0b"] }, {}))).toContain("NUL");
  });
});

describe("processEnv()", () => {
  const env = (envs: { key: string; value: Uint8Array }[], tty = false) =>
    processEnv({ config: { envs, tty }, image, hostname: "h" });

  test("adds what is missing and lets the later of two win", () => {
    expect(env([{ key: "A", value: bytes("2=3") }], true)).toEqual([
      "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
      "TERM=xterm",
      "HOSTNAME=h",
      "A=2=3",
      "BARE=",
    ]);
  });

  test("keeps text beyond ASCII and a leading byte order mark, and refuses what is not UTF-8", () => {
    expect(env([{ key: "U", value: bytes("\ufeffžluťoučký") }])).toContain("U=\ufeffžluťoučký");
    const broken = [{ key: "B", value: Uint8Array.of(0xff, 0xfe) }];
    expect(codeAndMessage(() => env(broken))).toContain("variable B is not UTF-8");
  });

  test("refuses names that are none", () => {
    expect(codeAndMessage(() => env([{ key: "", value: bytes("1") }]))).toContain("not the name");
    expect(codeAndMessage(() => env([{ key: "A=B", value: bytes("1") }]))).toContain('"A=B"');
    expect(codeAndMessage(() => env([{ key: "A", value: bytes("\0") }]))).toContain("NUL");
  });
});

test("workingDir() is absolute whatever the image says, and CRI's must be", () => {
  expect(workingDir({}, {})).toBe("/");
  expect(workingDir({}, image)).toBe("/srv");
  expect(workingDir({ working_dir: "/a/../b/" }, image)).toBe("/b");
  expect(codeAndMessage(() => workingDir({ working_dir: "b" }, image))).toContain('"b"');
});
