// The tar reader, in chunks of every size, against damaged streams, and against GNU tar's output.
import { describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../../src/base/errors.ts";
import { TarReader, type TarHeader } from "../../../src/layer/tar_reader.ts";
import { tar } from "../../image_maker.ts";

type Read = { headers: TarHeader[]; bodies: Buffer[]; ends: number };

function read(stream: Uint8Array, chunkSize: number): Read {
  const result: Read = { headers: [], bodies: [], ends: 0 };
  const reader = new TarReader({
    entry: (header) => {
      result.headers.push(header);
      result.bodies.push(Buffer.alloc(0));
    },
    data: (chunk) => {
      result.bodies.push(Buffer.concat([result.bodies.pop()!, chunk]));
    },
    entryEnd: () => result.ends++,
  });
  for (let at = 0; at < stream.length; at += chunkSize) {
    reader.push(stream.subarray(at, at + chunkSize));
  }
  reader.end();
  return result;
}

const stream = tar([
  { name: "a", data: "one", mode: 0o4711, uid: 1, gid: 2, mtime: 3 },
  { name: "empty" },
  { name: `${"long/".repeat(60)}name`, data: "x".repeat(1000) },
  { name: "link", type: "2", link: "t".repeat(150) },
  { name: "block", data: Buffer.alloc(512, 1), pax: { "SCHILY.xattr.user.k": "v\nw" } },
  { name: "last", data: "end" },
]);

describe("TarReader", () => {
  test.each([1, 7, 511, 512, 513, 4096, 1 << 20])("reads the same in chunks of %i", (size) => {
    const { headers, bodies, ends } = read(stream, size);
    expect(headers.map(({ name }) => name)).toEqual([
      "a",
      "empty",
      `${"long/".repeat(60)}name`,
      "link",
      "block",
      "last",
    ]);
    expect(ends).toBe(6);
    expect(bodies.map((body) => body.length)).toEqual([3, 0, 1000, 0, 512, 3]);
    expect(headers[0]).toMatchObject({
      mode: 0o4711,
      uid: 1,
      gid: 2,
      mtime: { s: 3, ns: 0 },
      size: 3,
    });
    expect(headers[3]!.link).toBe("t".repeat(150));
    expect(headers[4]!.xattrs).toEqual([["user.k", Buffer.from("v\nw")]]);
    expect(headers[5]!.xattrs).toEqual([]);
    for (const [i, { offset, size: length }] of headers.entries()) {
      expect(stream.subarray(offset, offset + length)).toEqual(bodies[i]!);
    }
  });

  test("skips content that its caller seeks over", () => {
    const names: string[] = [];
    const reader = new TarReader({
      entry: ({ name }) => names.push(name),
      data: () => {},
      entryEnd: () => {},
    });
    for (let at = 0; at < stream.length;) {
      reader.push(stream.subarray(at, at + 100));
      at += Math.min(100, stream.length - at) + reader.skippable;
      reader.skip(reader.skippable);
    }
    reader.end();
    expect(names).toEqual(read(stream, 512).headers.map(({ name }) => name));
  });

  test.each(["gnu", "posix", "ustar", "v7"])("reads what GNU tar writes as %s", (format) => {
    const folder = fs.mkdtempSync(join(tmpdir(), "isulad-tar-"));
    const name = format === "v7" ? "short" : "d".repeat(90);
    const long = ["gnu", "posix"].includes(format) ? "n".repeat(120) : "n";
    fs.mkdirSync(join(folder, name));
    fs.writeFileSync(join(folder, name, long), "content", { mode: 0o640 });
    fs.symlinkSync("target".repeat(format === "v7" ? 2 : 10), join(folder, name, "link"));
    const args = ["-C", folder, `--format=${format}`, "--sort=name", "-cf", "-", name];
    const made = spawnSync("tar", args).stdout;
    fs.rmSync(folder, { recursive: true });
    const { headers, bodies } = read(made, 1000);
    expect(headers.map((header) => [header.type, header.name])).toEqual([
      ["5", `${name}/`],
      ["2", `${name}/link`],
      ["0", `${name}/${long}`],
    ]);
    expect(headers[2]!.mode).toBe(0o640);
    expect(bodies[2]!.toString()).toBe("content");
  });

  test("answers a damaged stream with an error of its own, and ends", () => {
    const seed = Number(process.env["SEED"] ?? 1);
    let state = seed;
    const random = (below: number) => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    for (let round = 0; round < 3000; round++) {
      const damaged = Buffer.from(stream);
      for (let i = random(4); i >= 0; i--) damaged[random(damaged.length)] = random(256);
      const bytes = random(3) === 0 ? damaged.subarray(0, random(damaged.length)) : damaged;
      // Half of the time the checksums fit, so that what is behind them is reached.
      if (random(2) === 0) repair(bytes);
      try {
        read(bytes, 1 + random(2000));
      } catch (error) {
        if (!(error instanceof CriError)) throw new Error(`SEED=${seed}`, { cause: error });
      }
    }
  });
});

function repair(bytes: Buffer): void {
  for (let at = 0; at + 512 <= bytes.length; at += 512) {
    if (bytes.toString("latin1", at + 257, at + 262) !== "ustar") continue;
    bytes.fill(" ", at + 148, at + 156);
    let sum = 0;
    for (let i = at; i < at + 512; i++) sum += bytes[i]!;
    bytes.write(`${sum.toString(8).padStart(6, "0")}\0 `, at + 148, "latin1");
  }
}
