// Tests that texts are measured and cut by the cells of a terminal. Bun's own measure is the other opinion.
import { expect, test } from "bun:test";
import { beginning, cellsOf, ending, padded } from "../../../src/cli/cells.ts";
import { fitted } from "../../../src/cli/fitted_table.ts";
import { folded } from "../../../src/cli/help.ts";
import { titleLine } from "../../../src/cli/progress.ts";
import { table } from "../../../src/cli/text.ts";

const texts = [
  "web",
  "",
  "größe",
  "网络-7d9c5b8f6d",
  "сервис",
  "データベース",
  "서버",
  "🚀 start ✅",
  "e\u0301te\u0301",
];

test.each(texts)("%p takes as many cells as Bun says", (text) => {
  expect(cellsOf(text)).toBe(Bun.stringWidth(text));
  expect(Bun.stringWidth(padded(text, 30))).toBe(30);
});

test.each(texts)("a cut of %p is never wider than asked, and has whole characters", (text) => {
  for (let cells = 0; cells < 20; cells++) {
    for (const part of [beginning(text, cells), ending(text, cells)]) {
      expect(Bun.stringWidth(part)).toBeLessThanOrEqual(cells);
      expect(part.isWellFormed()).toBe(true);
    }
    expect(text).toStartWith(beginning(text, cells));
    expect(text).toEndWith(ending(text, cells));
  }
  expect([beginning(text, 99), ending(text, 99)]).toEqual([text, text]);
});

const rows = [
  ["NAME", "STATE"],
  ["🚀".repeat(30), "Running"],
  ["データベース-7d9c5b8f6d-x2x4z", "Exited"],
];
const columnOf = (line: string, word: string) => Bun.stringWidth(line.slice(0, line.indexOf(word)));

test("columns stand below each other, and no row is broken, whatever the letters", () => {
  for (const text of [table(rows), fitted(rows, 40, {})]) {
    const [header = "", one = "", other = ""] = text.split("\n");
    expect(columnOf(one, "Running")).toBe(columnOf(header, "STATE"));
    expect(columnOf(other, "Exited")).toBe(columnOf(header, "STATE"));
  }
  for (const line of fitted(rows, 40, {}).split("\n")) {
    expect(Bun.stringWidth(line)).toBeLessThan(40);
  }
});

test("lines are folded and titles are cut by cells", () => {
  const lines = folded(`failed: ${"错误".repeat(30)}`, 40);
  expect(lines.map((line) => Bun.stringWidth(line))).toEqual([7, 40, 40, 40]);
  expect(Bun.stringWidth(titleLine(`Pulling ${"镜像".repeat(30)}:1`, 40))).toBeLessThan(40);
});
