// Tests that texts have colours only on a terminal, and not with NO_COLOR, and how a command ends whose output
// cannot be written.
import { afterEach, describe, expect, spyOn, test } from "bun:test";
import { join } from "node:path";
import { coloured, print, say } from "../../../src/cli/output.ts";

const main = join(import.meta.dirname, "../../../src/main.ts");

const { isTTY } = process.stdout;
const before = process.env["NO_COLOR"];
afterEach(() => {
  process.stdout.isTTY = isTTY;
  process.env["NO_COLOR"] = before ?? "";
});

test.each([
  [true, "", "\u001b[31mFAIL\u001b[0m"],
  [true, "1", "FAIL"],
  [false, "", "FAIL"],
])("with a terminal %p and NO_COLOR=%p the text is %j", (isTerminal, noColour, expected) => {
  process.stdout.isTTY = isTerminal;
  process.env["NO_COLOR"] = noColour;
  expect(coloured("FAIL", "red")).toBe(expected);
});

test("a line may have colours, and nothing else that a terminal obeys", () => {
  process.stdout.isTTY = true;
  process.env["NO_COLOR"] = "";
  using out = spyOn(process.stdout, "write").mockImplementation(() => true);
  using error = spyOn(process.stderr, "write").mockImplementation(() => true);
  for (const write of [print, say]) write(`${coloured("FAIL", "red")} a\u001b[2Jb\u202Ec\u009b`);
  const line = "\u001b[31mFAIL\u001b[0m a\uFFFD[2Jb\uFFFDc\uFFFD\n";
  expect([out.mock.calls, error.mock.calls]).toEqual([[[line]], [[line]]]);
});

describe("a command", () => {
  test.each([["--version"], ["--help"], ["config default"]])(
    "ends silently with 141 when the reader of its output has gone: %s",
    (words) => {
      expect(ended(`${words} | exec true`)).toEqual({ code: 141, error: "" });
    },
  );

  test("goes on when nobody reads its messages", () => {
    expect(ended("nosuch 2>/dev/full")).toEqual({ code: 2, error: "" });
  });

  test("ends with 1 and the reason when its output cannot be written", () => {
    expect(ended("--version >/dev/full")).toEqual({
      code: 1,
      error: expect.stringMatching(
        /^isulad-ts: cannot write to standard output: ENOSPC: [^\n]*\n$/,
      ),
    });
  });
});

/** Runs a command line of isulad-ts; the code is that of isulad-ts, not of its reader. */
function ended(line: string): { code: number; error: string } {
  const script = `set -o pipefail; "${process.execPath}" "${main}" ${line}`;
  const { exitCode, stderr } = Bun.spawnSync(["bash", "-c", script]);
  return { code: exitCode, error: stderr.toString() };
}
