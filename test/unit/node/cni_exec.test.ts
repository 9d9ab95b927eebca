// Tests the call of a CNI plugin, and the errors made of the output of failing ones.
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { execPlugin, pluginError } from "../../../src/node/cni_exec.ts";

const error = (fields: object) => JSON.stringify({ cniVersion: "1.0.0", ...fields });

test.each([
  [
    "an error object",
    error({ code: 7, msg: "bad", details: "key x" }),
    "",
    "INTERNAL",
    "bad: key x [CNI error 7]",
  ],
  ["no details", error({ code: 7, msg: "bad", details: "" }), "", "INTERNAL", "bad [CNI error 7]"],
  ["no code", error({ msg: "bad" }), "", "INTERNAL", "bad"],
  ["a code to retry", error({ code: 11, msg: "busy" }), "", "UNAVAILABLE", "busy [CNI error 11]"],
  [
    "an unready network",
    error({ code: 50, msg: "down" }),
    "",
    "UNAVAILABLE",
    "down [CNI error 50]",
  ],
  ["an empty message", error({ code: 7, msg: "" }), "panic", "INTERNAL", "exit code 2: panic"],
  ["text on stdout", "no JSON", "", "INTERNAL", "exit code 2: no JSON"],
  ["text on both", "no JSON", "panic\n", "INTERNAL", "exit code 2: panic"],
  ["no output", "", "", "INTERNAL", "exit code 2"],
])("pluginError() with %s", (_, stdout, stderr, code, message) => {
  expect(pluginError({ exitCode: 2, stdout, stderr })).toMatchObject({ code, message });
});

test("execPlugin() runs a shell script that opens its streams by their paths", async () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-cni-exec-"));
  try {
    const script =
      "#!/bin/sh\nconfig=$(cat /dev/stdin)\necho asked >/dev/stderr\necho $config >/dev/stdout\n";
    writeFileSync(join(dir, "script"), script, { mode: 0o755 });
    const call = { command: "STATUS" as const, plugin: "script", binDirs: [dir], input: { a: 1 } };
    const { stdout, stderr } = await execPlugin(call, AbortSignal.timeout(10_000));
    expect([stdout, stderr]).toEqual(['{"a":1}\n', "asked\n"]);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
