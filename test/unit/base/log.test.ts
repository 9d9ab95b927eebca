// Tests the lines that createLog() writes as text and as JSON.
import { expect, test } from "bun:test";
import { createLog, type LogFormat, type LogLevel } from "../../../src/base/log.ts";

function capture(format: LogFormat, level: LogLevel = "info") {
  const lines: string[] = [];
  const log = createLog({ format, level, stream: { write: (text) => lines.push(text) } });
  return { log, lines };
}

test("createLog writes one line an event, whatever a message or a field holds", () => {
  const { log, lines } = capture("text");
  log.info("a\nb\u001B[31m", {
    path: "/x y",
    n: 5n,
    none: undefined,
    evil: "1\n2026 ERROR forged",
  });
  expect(lines).toHaveLength(1);
  expect(lines[0]).toMatch(
    /^\d{4}-\d\d-\d\dT[\d:.]+Z INFO {2}a\\nb\\u001b\[31m path="\/x y" n=5 evil="1\\n2026 ERROR forged"\n$/,
  );
});

test("createLog writes JSON that a field cannot pose in", () => {
  const { log, lines } = capture("json");
  log
    .child("cri")
    .child("pod")
    .warn("told", { level: "debug", bytes: 2n ** 60n, ok: true });
  const line = JSON.parse(lines[0]!);
  expect(line).toMatchObject({ level: "warn", room: "cri/pod", msg: "told", ok: true });
  expect(line.bytes).toBe("1152921504606846976");
});

test("createLog leaves out what is below its level and folds nothing", () => {
  const { log, lines } = capture("text", "warn");
  for (let i = 0; i < 20; i++) log.warn("same");
  log.info("not this");
  expect(lines).toHaveLength(20);
});
