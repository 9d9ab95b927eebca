// Runs a short stress with a fixed seed, and tests the comparisons with planted faults.
import { describe, expect, test } from "bun:test";
import { executable } from "./harness.ts";
import { planOf, stress } from "./stress.ts";
import {
  compareEnd,
  compareLog,
  compareOutput,
  countRepeats,
  type Faults,
  readOwnLog,
  streamsOf,
} from "./stress_check.ts";

const time = "2026-01-01T00:00:00.000000000Z";
const line = (text: string, { stream = "stdout", tag = "F" } = {}) =>
  `${time} ${stream} ${tag} ${text}\n`;

function kindsOf(act: (faults: Faults) => void): string[] {
  const faults: Faults = {};
  act(faults);
  return Object.keys(faults);
}

describe("compareOutput", () => {
  const wanted = { exitCode: 7, stdout: "1\n2\n", stderr: "3\n" };
  test.each([
    ["what was sent", {}, []],
    ["an exit code of SIGPIPE", { exitCode: 141 }, ["SIGPIPE"]],
    ["another exit code", { exitCode: 0 }, ["wrong code"]],
    ["no output", { stdout: "" }, ["bytes differ"]],
    ["output that ends early", { stdout: "1\n" }, ["bytes differ"]],
    ["output of somebody else", { stderr: "4\n" }, ["bytes differ"]],
    ["both streams in one", { stdout: "1\n2\n3\n", stderr: "" }, ["bytes differ"]],
  ])("finds %s", (_, change, kinds) => {
    const got = { ...wanted, ...change };
    expect(kindsOf((faults) => compareOutput(got, wanted, { who: "x", faults }))).toEqual(kinds);
  });

  test("accepts 141 when the command ended so", () => {
    const wanted = { exitCode: 141, stdout: "", stderr: "" };
    expect(kindsOf((faults) => compareOutput(wanted, wanted, { who: "x", faults }))).toEqual([]);
  });
});

describe("compareLog", () => {
  const wanted = { stdout: "1\n2\n3", stderr: "a\n" };
  const whole = [line("1"), line("a", { stream: "stderr" }), line("2"), line("3", { tag: "P" })];
  const kinds = (log: string, repeats = false) =>
    kindsOf((faults) => compareLog(log, wanted, { who: "x", faults, repeats }));

  test("finds nothing in a complete log, also with a line in two parts", () => {
    expect(kinds(whole.join(""))).toEqual([]);
    expect(kinds(whole.with(0, line("", { tag: "P" }) + line("1")).join(""))).toEqual([]);
  });

  test.each([
    ["a lost line", whole.toSpliced(2, 1), "log differs"],
    ["a lost end", whole.toSpliced(3, 1), "log differs"],
    ["a line that came twice", whole.toSpliced(0, 0, line("1")), "log differs"],
    ["lines in another order", whole.with(0, line("2")).with(2, line("1")), "log differs"],
    ["a byte that changed", whole.with(2, line("2\0")), "log differs"],
    ["a line of the other stream", whole.with(1, line("a")), "log differs"],
    ["a line cut in two", whole.with(0, `${line("1")}${time} std`), "log differs"],
    ["a log that ends within a line", [...whole, `${time} stdout F 4`], "log differs"],
    ["a newline that nobody wrote", whole.with(3, line("3")), "newline added"],
  ])("finds %s", (_, lines, kind) => expect(kinds(lines.join(""))).toEqual([kind]));

  test("accepts lines that a killed monitor's successor repeated, and still finds lost ones", () => {
    expect(kinds([...whole.slice(0, 3), ...whole].join(""), true)).toEqual([]);
    expect(kinds([whole[0]!, whole[0]!, ...whole.slice(1)].join(""), true)).toEqual([]);
    expect(kinds(whole.toSpliced(2, 1).join(""), true)).toEqual(["log differs"]);
  });

  test.each([
    ["1\n2\n3\n", 0],
    ["1\n2\n1\n2\n3\n", 2],
    ["1\n2\n2\n3\n2\n3\n", 3],
    ["1\n3\n", undefined],
    ["1\n2\n", undefined],
    ["2\n1\n2\n3\n", undefined],
    ["1\n2\n3\n4\n", undefined],
    ["12\n3\n", undefined],
  ])("countRepeats(%j) is %p", (got, count) => expect(countRepeats(got, "1\n2\n3\n")).toBe(count));

  test.each([
    ["1\n2\n", 0],
    ["1\n1\n2", 1],
    ["", 0],
    ["2\n", undefined],
    ["1\n3\n", undefined],
  ])("countRepeats(%j) of a text that may end early is %p", (got, count) => {
    expect(countRepeats(got, "1\n2\n3\n", { mayEnd: true })).toBe(count);
  });

  test("streamsOf joins parts by their stream", () => {
    const parts = [line("a", { tag: "P" }), line("x", { stream: "stderr" }), line("b")];
    expect(streamsOf(parts.join(""))).toEqual({ stdout: "ab\n", stderr: "x\n" });
  });
});

test.each([
  [0, 0, "Completed", "", false, []],
  [7, 7, "Error", "", false, []],
  [7, 255, "Unknown", "why", true, []],
  [7, 255, "Unknown", "why", false, ["wrong code"]],
  [7, 255, "Unknown", "", true, ["wrong code"]],
  [7, 0, "Completed", "", true, ["wrong code"]],
  [7, 141, "Error", "", false, ["SIGPIPE"]],
  [7, 7, "OOMKilled", "", false, ["wrong code"]],
])(
  "compareEnd(%d as %d %s %j, unknown: %p) finds %j",
  (code, exitCode, reason, message, unknown, kinds) => {
    const got = { exitCode, reason, message };
    expect(kindsOf((faults) => compareEnd(got, code, { who: "x", faults, unknown }))).toEqual(
      kinds,
    );
  },
);

describe("readOwnLog", () => {
  const at = "2026-01-01T00:00:00.000Z";
  test.each([
    ["a bad descriptor", `${at} WARN  monitor: closing failed error="EBADF: close"`, ["own log"]],
    ["a crash", `${at} INFO  monitor ready\nerror: tee\n      at main (x.ts:1:1)`, ["own log"]],
    ["nothing in what is no warning", `${at} INFO  EINVAL\n${at} DEBUG EPIPE`, []],
    [
      "nothing in another warning",
      `${at} WARN  monitor: the monitor has ended, starting another`,
      [],
    ],
  ])("finds %s", (_, log, kinds) => {
    expect(kindsOf((faults) => readOwnLog(log, { who: "daemon", faults }))).toEqual(kinds);
  });

  test("counts other warnings by their shape", () => {
    const warning = (id: string) => `${at} WARN  late container=${id} after 17 s\n`;
    const shapes = readOwnLog(warning("0123456789ab") + warning("ba9876543210"), {
      who: "daemon",
      faults: {},
    });
    expect([...shapes]).toEqual([["WARN  late container=ID after N s", 2]]);
  });
});

test(`a short stress of ${executable} finds no fault`, async () => {
  const counts = {
    execs: 40,
    short: 4,
    terminals: 8,
    slow: 1,
    streams: 2,
    attaches: 1,
    forwards: 1,
    pulls: 1,
    pods: 1,
    cancels: 4,
  };
  const plan = planOf(3, { counts, loggers: 1, disturbances: 1, kinds: ["upgrade timed out"] });
  const tally = await stress(plan);
  expect(tally.faults).toEqual({});
  expect(tally.execs).toBe(counts.execs);
  expect(tally.disturbances).toEqual({ "upgrade timed out": 1 });
}, 400_000);
