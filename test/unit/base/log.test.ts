// Tests the lines that createLog() writes as text and as JSON.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { fstatSync, openSync, closeSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { isJournal } from "../../../src/base/journal.ts";
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

test("a field cannot turn the direction of writing in its line, nor be invisible", () => {
  const { log, lines } = capture("text");
  log.info("a\u202Eb", { name: "x\u200Byz\u{E0041}" });
  expect(lines[0]).toEndWith(String.raw` a\u202eb name="x\u200byz\udb40\udc41"` + "\n");
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

test.each<LogFormat>(["text", "json"])(
  "the journal gets the priority of each %s line",
  (format) => {
    const lines: string[] = [];
    const stream = { write: (text: string) => lines.push(text) };
    const log = createLog({ level: "debug", format, stream, isJournal: true });
    for (const level of ["error", "warn", "info", "debug"] as const) log[level]("x", { a: "<0>" });
    expect(lines.map((line) => line.slice(0, 3))).toEqual(["<3>", "<4>", "<6>", "<7>"]);
    expect(lines[1]).toMatch(
      format === "json" ? /^<4>\{.*\}\n$/ : /^<4>\d{4}-.* WARN {2}x a=<0>\n$/,
    );
  },
);

test("only the descriptor that $JOURNAL_STREAM names is the journal", () => {
  const fd = openSync("/dev/null", "w");
  const { dev, ino } = fstatSync(fd, { bigint: true });
  const env = { JOURNAL_STREAM: `${dev}:${ino}` };
  expect(isJournal(env, fd)).toBe(true);
  expect(isJournal({ JOURNAL_STREAM: `${dev}:${ino + 1n}` }, fd)).toBe(false);
  expect(isJournal({}, fd)).toBe(false);
  closeSync(fd);
  expect(isJournal(env, fd)).toBe(false);
});

test("a log whose disk is full loses lines and ends nothing", () => {
  const file = join(import.meta.dirname, "../../../src/base/log.ts");
  const program = `
    const { createLog } = await import(${JSON.stringify(file)});
    const log = createLog({ level: "info", format: "text" });
    for (let i = 0; i < 3; i++) {
      log.info("line");
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    console.log("goes on");
  `;
  const full = openSync("/dev/full", "w");
  const stdio: ["ignore", "pipe", number] = ["ignore", "pipe", full];
  const { status, stdout } = spawnSync(process.execPath, ["-e", program], {
    stdio,
    encoding: "utf8",
  });
  closeSync(full);
  expect({ status, stdout }).toEqual({ status: 0, stdout: "goes on\n" });
});
