// Tests the bound of an exec's output: output within it is kept whole, and neither stream takes the other's
// half.
import { expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Capture, type Captured } from "../../../src/monitor_log/capture.ts";
import { OutputFile } from "../../../src/monitor_log/output_file.ts";
import { pipe, setPipeSize } from "../../../src/sys/descriptor.ts";

const max = 1000;

/** Writes the pieces one after another, o: to stdout, e: to stderr; the bytes kept of each. */
function keep(pieces: ["o" | "e", number][]) {
  const [out, err] = [pipe(), pipe()];
  for (const { writer } of [out, err]) setPipeSize(writer, 64 << 10);
  const streams = { stdout: out.reader.release(), stderr: err.reader.release() };
  const capture = new Capture(streams, max);
  let written = 0;
  for (const [stream, length] of pieces) {
    const bytes = Buffer.from(Array.from({ length }, () => written++ % 251));
    writeSync((stream === "o" ? out : err).writer.fd, bytes);
    for (const input of capture.inputs) while (input.turn() === "more");
  }
  for (const { writer } of [out, err]) writer.close();
  expect(capture.inputs.map((input) => input.turn())).toEqual(["end", "end"]);
  for (const { descriptor } of capture.inputs) descriptor.close();
  return capture.collected();
}

const lengths = ({ stdout, stderr }: Captured) => [stdout.length, stderr.length];

test.each<[["o" | "e", number][], number[]]>([
  [[["o", max]], [max, 0]],
  [[["e", max]], [0, max]],
  [
    [
      ["o", 900],
      ["e", 100],
    ],
    [900, 100],
  ],
  [
    [
      ["o", 5000],
      ["e", 1],
    ],
    [999, 1],
  ],
  [
    [
      ["e", 1],
      ["o", 5000],
    ],
    [999, 1],
  ],
  [
    [
      ["o", 5000],
      ["e", 5000],
    ],
    [500, 500],
  ],
  [
    [
      ["o", 300],
      ["e", 5000],
      ["o", 400],
    ],
    [500, 500],
  ],
  [
    [
      ["o", 300],
      ["e", 5000],
      ["o", 100],
    ],
    [400, 600],
  ],
])("of %j it keeps %j bytes", (pieces, kept) => {
  expect(lengths(keep(pieces))).toEqual(kept);
});

test("what is kept of a stream is its beginning, also after it was cut for the other", () => {
  const { stdout, stderr } = keep([
    ["o", 600],
    ["o", 500],
    ["e", 200],
  ]);
  expect(stdout).toEqual(Buffer.from(Array.from({ length: 800 }, (_, index) => index % 251)));
  expect(stderr).toEqual(Buffer.from(Array.from({ length: 200 }, (_, i) => (1100 + i) % 251)));
});

/** Captures as much of each stream, into a file where it is large, and returns what the file then has of each. */
function captured(
  path: string,
  { out, err, bytesMax }: { out: number; err: number; bytesMax: number },
) {
  const [outPipe, errPipe] = [pipe(), pipe()];
  const streams = { stdout: outPipe.reader.release(), stderr: errPipe.reader.release() };
  const capture = new Capture(streams, bytesMax, new OutputFile(path));
  for (const [{ writer }, letter, bytes] of [
    [outPipe, "o", out],
    [errPipe, "e", err],
  ] as const) {
    for (let left = bytes; left > 0;) {
      left -= writeSync(writer.fd, letter.repeat(Math.min(left, 32 << 10)));
      for (const input of capture.inputs) while (input.turn() === "more");
    }
    writer.close();
  }
  for (const { descriptor } of capture.inputs) descriptor.close();
  return capture.collected();
}

const count = (bytes: Uint8Array, letter: string) =>
  Buffer.from(bytes).toString().split(letter).length - 1;

test("output over 64 KiB lies in the file, each stream in a part of its own", () => {
  const dir = mkdtempSync(join(tmpdir(), "outputs-"));
  const path = join(dir, "outputs/one");
  const { stdout, stderr, inFile, cut } = captured(path, {
    out: 100_000,
    err: 70_000,
    bytesMax: 1 << 20,
  });
  expect([stdout.length, stderr.length, cut]).toEqual([0, 0, undefined]);
  expect(inFile).toEqual({ stdoutBytes: 100_000, stderrFrom: 1 << 20, stderrBytes: 70_000 });
  const file = readFileSync(path);
  expect(count(file.subarray(0, 100_000), "o")).toBe(100_000);
  expect(count(file.subarray(1 << 20), "e")).toBe(70_000);
  rmSync(dir, { recursive: true });
});

test("output in a file has the same bound: each stream keeps half of it", () => {
  const dir = mkdtempSync(join(tmpdir(), "outputs-"));
  const path = join(dir, "one");
  const { inFile } = captured(path, { out: 300_000, err: 300_000, bytesMax: 200_000 });
  expect(inFile).toEqual({ stdoutBytes: 100_000, stderrFrom: 200_000, stderrBytes: 100_000 });
  rmSync(dir, { recursive: true });
});

test("small output makes no file", () => {
  const dir = mkdtempSync(join(tmpdir(), "outputs-"));
  const path = join(dir, "outputs/one");
  const { stdout, stderr, inFile } = captured(path, { out: 60_000, err: 5_000, bytesMax: 1 << 20 });
  expect([count(stdout, "o"), count(stderr, "e"), inFile]).toEqual([60_000, 5_000, undefined]);
  expect(existsSync(join(dir, "outputs"))).toBeFalse();
  rmSync(dir, { recursive: true });
});

test("where no file can be written, the beginning is kept, and the reason", () => {
  const dir = mkdtempSync(join(tmpdir(), "outputs-"));
  writeFileSync(join(dir, "outputs"), ""); // no folder
  const path = join(dir, "outputs/one");
  const { stdout, inFile, cut } = captured(path, { out: 300_000, err: 0, bytesMax: 1 << 20 });
  expect([count(stdout, "o"), inFile]).toEqual([64 << 10, undefined]);
  expect(cut).toContain("EEXIST");
  rmSync(dir, { recursive: true });
});
