// Tests the forms of an answer, and tables that fit a terminal.
import { expect, spyOn, test } from "bun:test";
import { parse } from "yaml";
import { printJson } from "../../../src/cli/daemon_command.ts";
import { checkFormat, propertyTable, show } from "../../../src/cli/format.ts";
import { fitted } from "../../../src/cli/fitted_table.ts";
import { layerReport } from "../../../src/cli/images_verify.ts";
import { table } from "../../../src/cli/text.ts";

const value = { status: { id: "4f2a", state: "CONTAINER_RUNNING" }, pids: [1, 2], none: "" };

async function shown(format: { output: string; template?: string }, of: unknown = value) {
  using out = spyOn(process.stdout, "write").mockImplementation(() => true);
  await show(format, of, () => propertyTable(of));
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

test("text of a container cannot move the terminal's cursor or begin a line", () => {
  const evil = "sh\u001b[2J\u009b1m\r\nroot\t1";
  const cell = "sh\uFFFD[2J\uFFFD1m root 1";
  for (const shown of [table([["COMMAND"], [evil]]), fitted([["COMMAND"], [evil]], 80, {})]) {
    expect(shown).toBe(`COMMAND\n${cell}\n`);
  }
  const damaged = { state: "damaged", chain_id: "4f2a", images: ["a"], differences: [evil] };
  const report = layerReport({ ...damaged, note: "", differences_count: 1 as never });
  expect(report).toBe(`damaged 4f2a of a\n  ${cell}`);
  expect(propertyTable({ env: evil })).toBe("env: sh\uFFFD[2J\uFFFD1m\nroot\t1\n");
});

test("text of a container cannot turn the direction of writing, nor be invisible", () => {
  // "exe.txt" would be shown as "txt.exe", and the second name like the first.
  const evil = "a\u202Etxt.exe\u2066 pa\u200Buse\uFEFF b\u00AD\u2028root\u{E0041}";
  const cell = "a\uFFFDtxt.exe\uFFFD pa\uFFFDuse\uFFFD b\uFFFD\uFFFDroot\uFFFD";
  for (const shown of [table([["COMMAND"], [evil]]), fitted([["COMMAND"], [evil]], 80, {})]) {
    expect(shown).toBe(`COMMAND\n${cell}\n`);
  }
  expect(propertyTable({ env: evil })).toBe(`env: ${cell}\n`);
});

/** Format characters and separators of all kinds, one of them of two UTF-16 units. */
const hidden = "00AD 061C 200B 200D 202E 2028 2029 2066 FEFF E0041"
  .split(" ")
  .map((code) => String.fromCodePoint(Number.parseInt(code, 16)));
/** Every control, alone, within a word, in a text of lines, and in a key. */
const controls = Array.from({ length: 0xa0 }, (_, code) => String.fromCodePoint(code))
  .filter((text) => /\p{Cc}/u.test(text))
  .concat(hidden)
  .flatMap((text) => [
    { text },
    { text: `a${text}b` },
    { text: `a\n${text}\nb` },
    { [`k${text}`]: 1 },
  ]);

test("JSON and YAML contain no control that a terminal obeys, and keep their meaning", async () => {
  expect(controls).toHaveLength(4 * (65 + hidden.length));
  const [json, yaml] = await Promise.all(
    ["json", "yaml"].map((output) => shown({ output }, controls)),
  );
  for (const text of [json!, yaml!])
    expect(/[^\P{Cc}\n\t]|[\p{Cf}\p{Zl}\p{Zp}]/u.exec(text)).toBeNull();
  expect(JSON.parse(json!)).toEqual(controls);
  expect(parse(yaml!)).toEqual(controls);
  using out = spyOn(process.stdout, "write").mockImplementation(() => true);
  printJson(controls);
  expect(out.mock.calls).toEqual([[json!]]);
});

test("a template's text cannot control the terminal, and is exact where there is none", async () => {
  const format = { output: "go-template", template: "{{.env}}" };
  const evil = { env: "sh\u001b[2J\u009b1m" };
  expect(await shown(format, evil)).toBe(`${evil.env}\n`);
  const { isTTY } = process.stdout;
  try {
    process.stdout.isTTY = true;
    expect(await shown(format, evil)).toBe("sh\uFFFD[2J\uFFFD1m\n");
  } finally {
    process.stdout.isTTY = isTTY;
  }
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
  expect(fitted(rows, columns, { dispensable: ["ATTEMPT"] })).toBe(text);
});

const containers = [
  "CONTAINER,IMAGE,CREATED,STATE,NAME,ATTEMPT,POD ID,POD,NAMESPACE".split(","),
  [
    "765947f41d6c8",
    "registry.example.com/platform-team/controller-distroless:v1.27.3",
    "About a minute ago",
    "Running",
    "controller",
    "0",
    "93128bf8489e5",
    "ingress-nginx-controller-admission-7f9d6c4b5b-ml8vq",
    "kube-system",
  ],
  [
    "b3b5e3d5881d9",
    "nginx",
    "2 months ago",
    "Running",
    "nginx",
    "0",
    "fc7f7b82e6aa4",
    "web-7d9c5b8f6d-x2x4z",
    "shop",
  ],
];
const view = {
  dispensable: ["POD ID", "ATTEMPT"],
  narrow: ["NAMESPACE", "STATE", "CREATED", "IMAGE"],
};

test("on 80 columns ids, states, ages and both ends of names remain", () => {
  expect(fitted(containers, 80, view)).toBe(
    `CONTAINER      CREATED  STATE    NAME        POD                    NAMESPACE
765947f41d6c8  1m       Running  controller  ingress-nginx-…-ml8vq  kube-system
b3b5e3d5881d9  2mo      Running  nginx       web-7d9c5b8f6d-x2x4z   shop
`,
  );
});

test.each([200, 140, 120, 100, 80, 60, 50, 40])("no row is broken on %i columns", (columns) => {
  const lines = fitted(containers, columns, view).trimEnd().split("\n");
  for (const line of lines) expect(line.length).toBeLessThan(columns);
  expect(lines[1]).toStartWith("765947f41d6c8  ");
  expect(lines[0]).toContain("POD");
});
