// Tests that texts have colours only on a terminal, and not with NO_COLOR.
import { afterEach, expect, test } from "bun:test";
import { coloured } from "../../../src/cli/output.ts";

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
