// Measures the unit tests: inverts conditions of a room, one at a time in a copy of the project, and runs
// `bun test test/unit` on each. `bun test/mutations.ts ROOM [--count 10] [--seed 1] [--file NAME]` prints
// each inverted condition with the test that caught it, and fails when fewer than nine in ten were caught.
import { execFileSync, spawnSync } from "node:child_process";
import {
  cpSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { random } from "./random.ts";

type Condition = { file: string; line: number; start: number; end: number; text: string };

const root = join(import.meta.dirname, "..");
const timeoutMs = 120_000;
const caughtMin = 0.9;

/** Finds the conditions of a source text: the content of the parentheses of each `if`. */
export function conditionsOf(file: string, source: string): Condition[] {
  return [...source.matchAll(/\bif \(/g)].map(({ index, 0: head }) => {
    const start = index + head.length;
    const end = closingOf(source, start);
    const line = source.slice(0, index).split("\n").length;
    return { file, line, start, end, text: source.slice(start, end) };
  });
}

/** Finds the end of the parenthesis opened before `start`. Quoted parentheses count as code. */
function closingOf(source: string, start: number): number {
  let depth = 1;
  for (let at = start; at < source.length; at++) {
    if (source[at] === "(") depth++;
    if (source[at] === ")" && --depth === 0) return at;
  }
  return source.length;
}

export function inverted(source: string, { start, end, text }: Condition): string {
  return `${source.slice(0, start)}!(${text})${source.slice(end)}`;
}

/** Draws `count` distinct conditions. */
function drawn(all: Condition[], count: number, seed: number): Condition[] {
  const draw = random(seed);
  const ordered = all.map((one) => ({ one, at: draw() })).toSorted((a, b) => a.at - b.at);
  return ordered.slice(0, count).map(({ one }) => one);
}

/** Returns the first test that fails; undefined: none does. */
function catcherOf(folder: string): string | undefined {
  const tests = spawnSync(process.execPath, ["test", "test/unit"], {
    cwd: folder,
    encoding: "utf8",
    timeout: timeoutMs,
    maxBuffer: 64 << 20,
  });
  if (tests.status === 0) return undefined;
  return (
    /^\(fail\) (.*?)(?: \[|$)/m.exec(tests.stderr)?.[1] ?? "a file that no longer loads or ends"
  );
}

/** Copies the project with generated messages and installed packages. */
function copyOfProject(): string {
  const folder = mkdtempSync(join(tmpdir(), "isulad-mutations-"));
  const listed = execFileSync("git", ["ls-files"], { cwd: root, encoding: "utf8" }).trim();
  for (const name of listed.split("\n")) cpSync(join(root, name), join(folder, name));
  cpSync(join(root, "src/proto"), join(folder, "src/proto"), { recursive: true });
  symlinkSync(join(root, "node_modules"), join(folder, "node_modules"));
  return folder;
}

function main(): number {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      count: { type: "string", default: "10" },
      seed: { type: "string", default: "1" },
      file: { type: "string" },
    },
  });
  const room = positionals[0];
  if (room === undefined) throw new Error("name a room, as in: bun test/mutations.ts cri");
  const files = readdirSync(join(root, "src", room))
    .filter((name) => name.endsWith(".ts") && (values.file ?? name) === name)
    .map((name) => join("src", room, name));
  const all = files.flatMap((file) => conditionsOf(file, readFileSync(join(root, file), "utf8")));
  const chosen = drawn(all, Number(values.count), Number(values.seed));
  const folder = copyOfProject();
  let caught = 0;
  try {
    if (catcherOf(folder) !== undefined) throw new Error("the unit tests fail without a mutation");
    for (const condition of chosen) {
      const { file, line, text } = condition;
      const source = readFileSync(join(root, file), "utf8");
      writeFileSync(join(folder, file), inverted(source, condition));
      const catcher = catcherOf(folder);
      writeFileSync(join(folder, file), source);
      if (catcher !== undefined) caught++;
      console.log(
        `${catcher === undefined ? "MISSED" : "caught"} ${file}:${line} if (${text}) ${catcher ?? ""}`,
      );
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  console.log(`${room}: ${caught} of ${chosen.length} caught, of ${all.length} conditions`);
  return caught >= caughtMin * chosen.length ? 0 : 1;
}

if (import.meta.main) process.exitCode = main();
