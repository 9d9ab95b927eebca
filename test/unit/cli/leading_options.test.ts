// Tests which options may stand before a command.
import { expect, test } from "bun:test";
import { groups } from "../../../src/cli/commands.ts";
import { commandFirst } from "../../../src/cli/leading_options.ts";

const first = (line: string) => commandFirst(groups, line.split(" "));

test.each([
  ["-H unix:///x ps", "ps -H unix:///x"],
  ["--host=unix:///x ps -a", "ps --host=unix:///x -a"],
  ["-H ps ps", "ps -H ps"],
  ["--host logs logs web -f", "logs --host logs web -f"],
  ["-o json -q ps -a", "ps -o json -q -a"],
  ["--no-trunc pods", "pods --no-trunc"],
  ["-H unix:///x exec web ls -l", "exec -H unix:///x web ls -l"],
  ["-H unix:///x images prune", "images prune -H unix:///x"],
  ["-H unix:///x nri diff web", "nri diff -H unix:///x web"],
  ["-H unix:///x --help ps", "ps -H unix:///x --help"],
  ["-it run busybox sh", "run -it busybox sh"],
])("%s is %s", async (line, expected) => {
  expect(await first(line)).toEqual({ argv: expected.split(" ") });
});

test.each([
  ["--graph /x ps", "ps"], // a flag of the daemon
  ["-H unix:///x stray ps", "ps"],
  ["-H unix:///x -H unix:///y ps", "ps"],
  ["-H ps", "ps"], // the value
  ["--constructor info", "info"],
  ["-H unix:///x daemon", "daemon"],
])("%s has options that do not belong to %s", async (line, command) => {
  expect(await first(line)).toEqual({ command });
});

test("without a command nothing is moved", async () => {
  expect(await first("-H unix:///x constructor")).toEqual({});
});
