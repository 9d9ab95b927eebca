// Tests the search for processes by their command lines, which one that hangs must not stop.
import { afterAll, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { processesWith } from "../../src/sys/command_lines.ts";
import { startTime } from "../../src/sys/process.ts";

const dir = mkdtempSync(join(tmpdir(), "command-lines-"));
afterAll(() => rmSync(dir, { recursive: true }));

/** Makes a process in a folder that stands for /proc. words: undefined for one whose command line hangs. */
function standIn(pid: number, words: string[] | undefined, root = "/"): void {
  const at = join(dir, "proc", String(pid));
  mkdirSync(at, { recursive: true });
  const fields = Array.from({ length: 50 }, (_, index) => (index === 18 ? 1000 + pid : 0));
  writeFileSync(join(at, "stat"), `${pid} (a name) S ${fields.join(" ")}\n`);
  symlinkSync(root, join(at, "root"));
  if (words === undefined) execFileSync("mkfifo", [join(at, "cmdline")]); // a reader waits for its writer
  else writeFileSync(join(at, "cmdline"), `${words.join("\0")}\0`);
}

test("processes whose command lines cannot be read are left out, and the others found", async () => {
  mkdirSync(join(dir, "elsewhere", dir), { recursive: true });
  standIn(7, ["runc", "--log", "/a"]);
  standIn(8, undefined);
  standIn(20, ["runc", "--log", "/b"]);
  standIn(21, ["runc", "--log", "/a"], join(dir, "elsewhere"));
  standIn(100, undefined);
  standIn(101, ["runc", "--log", "/a", "create"]);
  const hanging: number[] = [];
  let ticks = 0;
  const ticking = setInterval(() => ticks++, 10);
  const search = { folder: dir, text: "\0--log\0/a", proc: join(dir, "proc") };
  const found = await processesWith(search, (pid) => hanging.push(pid));
  clearInterval(ticking);
  expect(hanging).toEqual([8, 100]);
  expect(found).toEqual([
    { pid: 7, started: "1007" },
    { pid: 101, started: "1101" },
  ]);
  expect(ticks).toBeGreaterThan(10); // the event loop has gone on
});

test("a process is found among all others, with its start time", async () => {
  const seconds = `600.${process.pid}`;
  const child = Bun.spawn(["sleep", seconds]);
  const text = `\0sleep\0${seconds}\0`;
  const found = await processesWith({ folder: dir, text }, () => {});
  expect(found).toEqual([{ pid: child.pid, started: startTime(child.pid)! }]);
  child.kill();
});
