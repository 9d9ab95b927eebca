// Tests the text of isulad-ts nri diff.
import { expect, test } from "bun:test";
import { jsonText } from "../../../src/base/json.ts";
import { toLong } from "../../../src/base/int64.ts";
import { changesText } from "../../../src/cli/nri_diff.ts";

type Field = { path: string; before?: unknown; after?: unknown };

function change(plugin: string, event: string, fields: Field[], more = 0) {
  const at = toLong(BigInt(new Date(2026, 10, 23, 20, 5, 6).getTime()) * 1_000_000n);
  const texts = fields.map(({ path, ...values }) => ({
    path,
    ...Object.fromEntries(Object.entries(values).map(([key, value]) => [key, jsonText(value)])),
  }));
  return { at, plugin, event, fields: texts, more_fields: toLong(more) };
}

function text(changes: ReturnType<typeof change>[], { columns = 80, dropped = 0 } = {}): string {
  return changesText("shop/web/nginx", { changes, dropped: toLong(dropped) }, columns);
}

test("fields are added, removed and changed, under the plugin that did it", () => {
  const mount = { destination: "/data", type: "bind", source: "/srv/a b", options: ["ro", "bind"] };
  const shown = text([
    change("10-pids", "CreateContainer", [
      { path: "linux.resources.pids.limit", after: 20n },
      { path: "process.env[A]", before: "1", after: "" },
      { path: "mounts[/data]", after: mount },
      { path: "mounts[/old]", before: { destination: "/old", options: [] } },
      { path: "process.args", before: ["sh"], after: ["sh", "-c", "a b"] },
    ]),
    change("20-cpu, 30-mem", "UpdateContainers", [
      { path: "linux.resources.cpu.shares", before: 2n, after: 1024n },
    ]),
    change("20-cpu", "UpdateContainerResources", [
      { path: "linux.resources.cpu.quota", before: -1n },
    ]),
  ]);
  expect(shown).toBe(`10-pids changed it at its creation, 2026-11-23 20:05:06:
  + linux.resources.pids.limit: 20
  ~ process.env[A]: 1 → ""
  + mounts[/data]: destination=/data type=bind source="/srv/a b" options=ro,bind
  - mounts[/old]: destination=/old options=[]
  ~ process.args: ["sh"] → ["sh", "-c", "a b"]

20-cpu, 30-mem updated it, 2026-11-23 20:05:06:
  ~ linux.resources.cpu.shares: 2 → 1024

20-cpu changed an update of it, 2026-11-23 20:05:06:
  - linux.resources.cpu.quota: -1
`);
});

test("a change that is too long for a line has a line for each side", () => {
  const path = "process.env[PATH]";
  const [before, after] = ["/usr/local/bin:/usr/bin", "/opt/tools/bin:/usr/local/bin:/usr/bin"];
  expect(text([change("10-a", "CreateContainer", [{ path, before, after }])], { columns: 60 }))
    .toBe(`10-a changed it at its creation, 2026-11-23 20:05:06:
  ~ process.env[PATH]:
    - /usr/local/bin:/usr/bin
    + /opt/tools/bin:/usr/local/bin:/usr/bin
`);
});

test.each([40, 80])("no line is longer than %i columns", (columns) => {
  const long = "x".repeat(500);
  const fields = [
    { path: `annotations[${long}]`, after: long },
    { path: "process.env[A]", before: long, after: `${long} y` },
    { path: "process.args", before: ["a".repeat(90), "b c"], after: [long] },
  ];
  const lines = text([change("10-a", "CreateContainer", fields)], { columns }).split("\n");
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(columns);
});

test("control characters of a plugin's text reach no terminal", () => {
  const fields = [{ path: "annotations[a\u001b[2J\nb]", before: "c\u001b[H", after: "d\ne\u009b" }];
  const shown = text([change("10-a", "CreateContainer", fields)]);
  expect(shown.replaceAll("\n", "")).not.toMatch(/\p{Cc}/u);
  expect(shown.split("\n")).toHaveLength(3);
});

test("what is not kept is counted, and no change is said to be none", () => {
  const shown = text([change("10-a", "CreateContainer", [{ path: "a", after: 1 }], 7)], {
    dropped: 1,
  });
  expect(shown).toStartWith("1 older update is gone\n\n10-a ");
  expect(shown).toEndWith("  and 7 more fields, not kept\n");
  expect(text([])).toBe("No NRI plugin has changed shop/web/nginx.\n");
});
