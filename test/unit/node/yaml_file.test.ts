// Tests the bounds of YAML files, which the parser would take minutes or all memory for.
import { expect, test } from "bun:test";
import { yamlValue } from "../../../src/node/yaml_file.ts";

const aliases = Array.from(
  { length: 9 },
  (_, index) =>
    `a${index}: &a${index} [${Array(9)
      .fill(index === 0 ? "x" : `*a${index - 1}`)
      .join()}]`,
);

test.each([
  ["keys of a map", "k: 0\n".repeat(8_193), "more than 8192 lines and items"],
  ["items of a list", `[${"0,".repeat(8_193)}]`, "more than 8192 lines and items"],
  ["levels of lists", "[".repeat(65) + "]".repeat(65), "nested too deep"],
  ["levels of a line", `${"- ".repeat(8_193)}x`, "more than 8192 lines and items"],
  ["levels by indentation", `a:\n${" ".repeat(257)}b: 1\n`, "nested too deep"],
  ["marks of keys", `${"? ".repeat(17)}a`, 'more than 16 marks "?"'],
  ["aliases", aliases.join("\n"), "alias"],
])("a file of too many %s is refused", (_, text, message) => {
  expect(() => yamlValue(text)).toThrow(message);
});

test("a file within the bounds is parsed, with octal numbers and aliases", () => {
  const text = "mode: 0660\nname: &name x\nlist:\n- *name\n- {a: [1, 2]}\n";
  expect(yamlValue(text)).toEqual({ mode: 0o660, name: "x", list: ["x", { a: [1, 2] }] });
  const many = Object.fromEntries(
    Array.from({ length: 4_000 }, (_, index) => [`k${index}`, index]),
  );
  const lines = Object.entries(many).map(([key, value]) => `${key}: ${value}\n`);
  expect(yamlValue(lines.join(""))).toEqual(many);
});

test("a key that is given twice is refused", () => {
  expect(() => yamlValue("a: 1\nb: 2\na: 3\n")).toThrow("the key a is given twice");
});
