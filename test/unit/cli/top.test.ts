// Tests the rows of `isulad-ts top`, and how run joins a log with what a terminal shows.
import { expect, test } from "bun:test";
import { joined } from "../../../src/cli/run_attached.ts";
import { isWithin, processRow } from "../../../src/cli/top.ts";

const stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 0 0 0 0 150 50 0 0 20 0 1 0 6000 0 0\n";
const status = "Name:\tapp\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t77\t5\nVmRSS:\t    2048 kB\n";

test("a row has the ids in the container and on the host, memory, times and the command", () => {
  const files = { stat, status, cmdline: "sh\0-c\0true\0" };
  expect(processRow(77, files, 3_785_000)).toEqual([
    "1000",
    "5",
    "77",
    "S",
    "2.1MB",
    "1:02:05",
    "0:02",
    "sh -c true",
  ]);
  const zombie = { stat, status: "Name:\tapp\nUid:\t0\t0\nNSpid:\t77\n", cmdline: "" };
  expect(processRow(77, zombie, 60_000)).toEqual([
    "0",
    "77",
    "77",
    "S",
    "0B",
    "0:00",
    "0:02",
    "[app]",
  ]);
});

test("a process belongs to a container by all its cgroups, or those below", () => {
  const own = "1:cpu:/pod/4f2a\n0::/\n";
  expect(isWithin("1:cpu:/pod/4f2a\n0::/\n", own)).toBe(true);
  expect(isWithin("1:cpu:/pod/4f2a/init\n0::/\n", own)).toBe(true);
  expect(isWithin("1:cpu:/pod\n0::/\n", own)).toBe(false);
  expect(isWithin("11:cpu:/pod/4f2a\n", own)).toBe(false);
  expect(isWithin("0::/\n", "0::/\n")).toBe(false); // the root holds every process
});

test.each([
  ["", "", ""],
  ["a\r\nb\r\n", "b\r\n# ", "a\r\nb\r\n# "],
  ["abc\r\n", "c\r\n", "abc\r\n"],
  ["a\n", "b\n", "a\nb\n"],
  ["a\n", "", "a\n"],
])("the log %j and the terminal's %j are %j", (log, shown, all) => {
  expect(joined(Buffer.from(log), Buffer.from(shown)).toString()).toBe(all);
});
