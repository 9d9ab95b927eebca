// Tests the part of Go's templates that -o go-template renders, against what Go prints.
import { expect, test } from "bun:test";
import { renderTemplate } from "../../../src/cli/go_template.ts";

const data = {
  info: { pid: 42, big: 2n ** 60n },
  status: { id: "4f2a", labels: { "io.x/y": "z", a: "b" }, mounts: [{ p: "/a" }, { p: "/b" }] },
  empty: [],
  ok: true,
};

test.each([
  ["{{.status.id}}", "4f2a"],
  ["id={{ .status.id }}, pid={{.info.pid}}\n", "id=4f2a, pid=42\n"],
  ["{{.info.big}}", "1152921504606846976"],
  ['{{index .status.labels "io.x/y"}}', "z"],
  ["{{index .status.mounts 1}}", "map[p:/b]"],
  ["{{.status.labels}}", "map[a:b io.x/y:z]"],
  ["{{.nosuch.field}}", "<no value>"],
  ["{{json .status.mounts}}", '[{"p":"/a"},{"p":"/b"}]'],
  ["{{.status.labels | json}}", '{"io.x/y":"z","a":"b"}'],
  ["{{len .status.mounts}}", "2"],
  ["{{range .status.mounts}}[{{.p}} {{$.status.id}}]{{end}}", "[/a 4f2a][/b 4f2a]"],
  ["{{range .empty}}x{{else}}none{{end}}", "none"],
  ["{{if .ok}}yes{{else}}no{{end}}{{if .empty}}yes{{end}}", "yes"],
  ["{{if .ok}}{{range .status.mounts}}{{if .p}}{{.p}}{{end}}{{end}}{{end}}", "/a/b"],
  ["a {{- .status.id -}} b", "a4f2ab"],
  ['{{"a\\tb"}}', "a\tb"],
  ["{{.constructor}}", "<no value>"],
  ['{{index .status.labels "a|b" | json}}', "null"],
  ['{{"}}" | len}}', "2"],
  ["{{if .empty}}a{{else if .nosuch}}b{{else if .ok}}c{{else}}d{{end}}e", "ce"],
])("%s is %j", (template, expected) => {
  expect(renderTemplate(template, data)).toBe(expected);
});

test.each([
  ["{{.a", "an action has no }}"],
  ["{{if .a}}x", "{{if}} has no {{end}}"],
  ["x{{end}}", "unexpected {{end}}"],
  ["{{if .a}}x{{else .b}}y{{end}}", 'unknown function "else"'],
  ["{{with .a}}x{{end}}", 'unknown function "with"'],
  ["{{.a || json}}", 'unknown function ""'],
  ["{{if .a}}{{break}}{{end}}", 'cannot read "break"'],
  ["{{printf .a}}", 'unknown function "printf"'],
  ["{{a b}}", 'cannot read "b"'],
  ["{{}}", 'cannot read ""'],
])("%s is refused: %s", (template, why) => {
  expect(() => renderTemplate(template, data)).toThrow(why);
});
