// Tests the errors made of the output of failing CNI plugins.
import { expect, test } from "bun:test";
import { pluginError } from "../../../src/node/cni_exec.ts";

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
