// Tests what isulad-ts doctor says of a runtime that does not tell its version in time.
import { expect, test } from "bun:test";
import { loadConfig } from "../../../src/base/config.ts";
import { CriError } from "../../../src/base/errors.ts";
import { thisNode } from "../../../src/doctor/node.ts";
import { checkRuntimes } from "../../../src/doctor/pods.ts";

const { config } = loadConfig(undefined);

test.each([
  ["is late", "DEADLINE_EXCEEDED", "repeat isulad-ts doctor when the machine is less busy"],
  ["fails", "INTERNAL", "install it again, for this machine's architecture"],
] as const)("of a runtime that %s (%s) doctor says: %s", async (message, code, mend) => {
  const node = { ...thisNode(), output: () => Promise.reject(new CriError(code, message)) };
  const runtimes = { runc: { ...config.runtimes["runc"]!, path: process.execPath } };
  const [finding] = await checkRuntimes(node, { ...config, runtimes });
  const detail = `${process.execPath} --version fails: ${message}`;
  expect(finding).toEqual({ check: "runtime runc", state: "fail", detail, mend });
});
