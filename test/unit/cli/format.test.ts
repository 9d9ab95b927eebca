// Tests the forms of an answer, and tables that fit a terminal.
import { expect, spyOn, test } from "bun:test";
import { checkFormat, propertyTable, show } from "../../../src/cli/format.ts";
import { fitted } from "../../../src/cli/text.ts";

const value = { status: { id: "4f2a", state: "CONTAINER_RUNNING" }, pids: [1, 2], none: "" };

async function shown(format: { output: string; template?: string }) {
  using out = spyOn(process.stdout, "write").mockImplementation(() => true);
  await show(format, value, () => propertyTable(value));
  return out.mock.calls.map(([text]) => String(text)).join("");
}

test("an answer is a table, JSON, YAML or what a template says", async () => {
  expect(await shown({ output: "table" })).toBe(
    "status.id: 4f2a\nstatus.state: CONTAINER_RUNNING\npids[0]: 1\npids[1]: 2\n",
  );
  expect(JSON.parse(await shown({ output: "json" }))).toEqual(value);
  expect(await shown({ output: "yaml" })).toStartWith("status:\n  id: 4f2a\n  state: CONT");
  expect(await shown({ output: "go-template", template: "{{.status.id}}" })).toBe("4f2a\n");
});

test("a template needs its format, and the format a template", () => {
  expect(() => checkFormat({ output: "go-template" })).toThrow("needs --template");
  expect(() => checkFormat({ output: "json", template: "x" })).toThrow("needs -o go-template");
});

const rows = [
  ["ID", "IMAGE", "STATE", "ATTEMPT"],
  ["0123456789abc", "docker.io/library/busybox:1.37", "Running", "0"],
];

test.each([
  [
    80,
    "ID             IMAGE                           STATE    ATTEMPT\n0123456789abc  docker.io/library/busybox:1.37  Running  0\n",
  ],
  [
    60,
    "ID             IMAGE                           STATE\n0123456789abc  docker.io/library/busybox:1.37  Running\n",
  ],
  [40, "ID             IMAGE            STATE\n0123456789abc  …y/busybox:1.37  Running\n"],
  [20, "ID        IMAGE     STATE\n0123456…  …ox:1.37  Running\n"], // no narrower
])("in %d columns, dispensable columns go first, then the widest are cut", (columns, text) => {
  expect(fitted(rows, columns, ["ATTEMPT"])).toBe(text);
});
