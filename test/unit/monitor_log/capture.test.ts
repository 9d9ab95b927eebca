// Tests the bound of an exec's output: output within it is kept whole, and neither stream takes the other's
// half.
import { expect, test } from "bun:test";
import { writeSync } from "node:fs";
import { Capture } from "../../../src/monitor_log/capture.ts";
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

const lengths = ({ stdout, stderr }: { stdout: Buffer; stderr: Buffer }) => [
  stdout.length,
  stderr.length,
];

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
