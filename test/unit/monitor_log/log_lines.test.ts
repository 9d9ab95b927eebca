// Tests that the cutter writes the same log whatever the pieces in which a stream arrives.
import { describe, expect, test } from "bun:test";
import {
  cut,
  LogOutput,
  usualLineBytes,
  rest,
  timestamp,
} from "../../../src/monitor_log/log_lines.ts";

/** A generator of numbers below a bound, the same ones for the same seed. */
function seeded(seed: number): (below: number) => number {
  let state = seed >>> 0 || 1;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}

/** Feeds a stream in pieces as a worker does: what was not consumed comes again. */
function logOf(data: Buffer, pieceBytes: () => number, hasReturns = false): string {
  const out = new LogOutput();
  const log: Buffer[] = [];
  let held = Buffer.alloc(0);
  for (let at = 0; at < data.length;) {
    const piece = data.subarray(at, at + pieceBytes());
    at += piece.length;
    const seen = Buffer.concat([held, piece]);
    const format = { stream: "stdout", lineBytes: usualLineBytes, hasReturns } as const;
    const used = cut(format, seen, out);
    held = seen.subarray(used);
    if (held.length > usualLineBytes) throw new Error(`${held.length} bytes are kept of one line`);
    log.push(Buffer.from(out.drain()));
  }
  rest("stdout", held, out);
  log.push(Buffer.from(out.drain()));
  return Buffer.concat(log).toString("latin1").replaceAll(/^\S+ /gm, "");
}

/** What the log must say, from the whole stream at once. */
function expected(data: Buffer): string {
  const lines = data.toString("latin1").split("\n");
  const last = lines.pop()!;
  const tail = last === "" ? 0 : 1;
  return [...lines, last]
    .slice(0, lines.length + tail)
    .map((line, index) => {
      let text = "";
      while (line.length > usualLineBytes) {
        text += `stdout P ${line.slice(0, usualLineBytes)}\n`;
        line = line.slice(usualLineBytes);
      }
      return `${text}stdout ${index < lines.length ? "F" : "P"} ${line}\n`;
    })
    .join("");
}

function randomStream(below: (n: number) => number): Buffer {
  const lines = Array.from({ length: 1 + below(30) }, () => {
    const length = [below(3), below(200), usualLineBytes - 2 + below(5), below(60_000)][below(4)]!;
    return Buffer.alloc(length, 97 + below(26)).toString("latin1");
  });
  return Buffer.from(lines.join("\n") + (below(2) === 0 ? "\n" : ""), "latin1");
}

describe("cut", () => {
  test("a stream in any pieces makes the same log", () => {
    for (let seed = 1; seed <= 60; seed++) {
      const below = seeded(seed * 2_654_435_761);
      const data = randomStream(below);
      const most = [200 + below(50), 4096, 70_000][below(3)]!;
      const log = logOf(data, () => 1 + below(most));
      if (log !== expected(data)) throw new Error(`seed ${seed}: another log, pieces to ${most}`);
    }
  });

  test("consumes whole lines only, and of a long one whole pieces", () => {
    const stderr = { stream: "stderr", lineBytes: usualLineBytes, hasReturns: false } as const;
    const out = new LogOutput();
    expect(cut(stderr, Buffer.from("one\ntwo"), out)).toBe(4);
    expect(cut(stderr, Buffer.from("two"), out)).toBe(0);
    expect(cut(stderr, Buffer.alloc(usualLineBytes, 97), out)).toBe(0);
    expect(cut(stderr, Buffer.alloc(usualLineBytes + 1, 97), out)).toBe(usualLineBytes);
  });

  test("a line is cut at the limit that is given", () => {
    const out = new LogOutput();
    const format = { stream: "stdout", lineBytes: 3, hasReturns: false } as const;
    expect(cut(format, Buffer.from("abcdefg\nhij\nkl"), out)).toBe(12);
    const lines = out.drain().toString().replaceAll(/^\S+ /gm, "");
    expect(lines).toBe("stdout P abc\nstdout P def\nstdout F g\nstdout F hij\n");
  });

  test("a terminal's carriage return before a newline is not written, any other one is", () => {
    const text = `one\r\n\r\na\rb\r\r\nend\r`;
    const whole = Buffer.from(`${text}\n${"x".repeat(usualLineBytes)}\r\n${text}`);
    const lines = (more: string) => `stdout F one\nstdout F \nstdout F a\rb\r\nstdout ${more}\n`;
    const long = `stdout P ${"x".repeat(usualLineBytes)}\nstdout F \n`;
    for (const pieceBytes of [1, 5, 70_000]) {
      const log = logOf(whole, () => pieceBytes, true);
      expect(log).toBe(`${lines("F end")}${long}${lines("P end\r")}`);
    }
    expect(logOf(Buffer.from("one\r\n"), () => 9)).toBe("stdout F one\r\n");
  });

  test("what has no newline at the end is a part of a line", () => {
    const out = new LogOutput();
    rest("stdout", Buffer.from("half"), out);
    expect(out.drain().toString()).toMatch(/^\S+ stdout P half\n$/);
  });

  test("a time has nanoseconds and is in UTC", () => {
    expect(timestamp()).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$/);
  });
});
