// Tests TarReader: chunks of many sizes, hostile headers, damaged streams, and the output of GNU tar.
import { describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../../src/base/errors.ts";
import { TarReader, type TarHeader } from "../../../src/layer/tar_reader.ts";
import { failure } from "../../expect.ts";
import { tar, type TarEntry } from "../../image_maker.ts";

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
      at += Math.min(100, stream.length - at) + reader.skip();
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

  const octal = (at: number, text: string) => (header: Buffer) => header.write(text, at, "latin1");
  test.each<[string, TarEntry[], string]>([
    ["a negative size", [{ name: "a", patch: (h) => h.fill(0xff, 124, 136) }], "negative"],
    ["a mode that is not a number", [{ name: "a", patch: octal(100, "zzz") }], "zzz"],
    ["a huge owner", [{ name: "a", pax: { uid: "99999999999" } }], "invalid owner"],
    ["a huge group", [{ name: "a", pax: { gid: "99999999999" } }], "invalid owner"],
    ["an invalid pax size", [{ name: "a", pax: { size: "-1" } }], "size"],
    ["large extended headers", [{ name: "a", pax: { path: "x".repeat(2 << 20) } }], "extended"],
    ["a sparse file without a size", [{ name: "a", pax: { "GNU.sparse.major": "1" } }], "sparse"],
    [
      "large global headers",
      Array.from({ length: 3 }, () => ({ name: "g", type: "g", data: global(30_000) })),
      "global extended headers of more than 65536 bytes",
    ],
  ])("refuses %s and names the entry before", async (_, entries, why) => {
    const bytes = tar([{ name: "before", data: "x" }, ...entries]);
    const error = await failure(Promise.try(() => read(bytes, 4096)));
    expect([error.code, error.message]).toEqual(["INVALID_ARGUMENT", error.message]);
    expect(error.message).toContain(why);
    expect(error.message).toEndWith('(entry 1 was "before")');
  });

  function global(bytes: number): string {
    return `${bytes} comment=${"x".repeat(bytes - `${bytes} comment=\n`.length)}\n`;
  }

  test("resets local extended headers after each entry, but not global ones", () => {
    const { headers } = read(
      tar([
        { name: "g", type: "g", data: "9 uid=77\n" },
        ...Array.from({ length: 3 }, (_, i) => ({
          name: `f${i}`,
          pax: { mtime: "5", comment: "x".repeat(600_000) },
        })),
        { name: "last", mtime: 1 },
      ]),
      4096,
    );
    expect(headers.map(({ uid }) => uid)).toEqual([77, 77, 77, 77]);
    expect(headers.map(({ mtime }) => mtime.s)).toEqual([5, 5, 5, 1]);
  });

  test("refuses a wrong checksum", async () => {
    const bytes = Buffer.from(stream);
    bytes[0]! ^= 1;
    expect((await failure(Promise.try(() => read(bytes, 4096)))).message).toContain("checksum");
  });

  test.each([515, 700, 1023])("accepts a stream of %d bytes: only padding is missing", (end) => {
    expect(read(stream.subarray(0, end), 4096).bodies[0]!.toString()).toBe("one");
  });

  test("accepts a checksum of signed bytes", () => {
    const bytes = tar([{ name: "caf\u00e9-\u20ac", uid: 7, data: "x" }, { name: "b" }]);
    for (const at of [0, 1024]) {
      const sum = bytes.subarray(at, at + 512).reduce((all, byte, i) => {
        if (i >= 148 && i < 156) return all + 32;
        return all + (byte < 128 ? byte : byte - 256);
      }, 0);
      bytes.write(`${sum.toString(8).padStart(6, "0")}\0 `, at + 148, "latin1");
    }
    expect(read(bytes, 512).headers.map(({ name }) => name)).toEqual(["caf\u00e9-\u20ac", "b"]);
  });

  const negative = (at: number, value: number) => (header: Buffer) => {
    header.fill(0xff, at, at + 8);
    header.writeInt32BE(value, at + 4);
  };
  test.each<[string, Partial<TarEntry>, number, number]>([
    ["-2 in binary", { patch: negative(108, -2) }, 2 ** 32 - 2, 0],
    ["a group of -2 in binary", { patch: negative(116, -2) }, 0, 2 ** 32 - 2],
    ["-2 in pax records", { pax: { uid: "-2", gid: "-65536" } }, 2 ** 32 - 2, 2 ** 32 - 65536],
    ["-1, which changes nothing", { pax: { uid: "-1" }, patch: negative(116, -1) }, 0, 0],
  ])("reads the owner %s", (_, entry, uid, gid) => {
    expect(read(tar([{ name: "a", ...entry }]), 512).headers[0]).toMatchObject({ uid, gid });
  });

  test.each<[string, Buffer, string]>([
    ["xz", Buffer.from("\xfd7zXZ\0", "latin1"), "compressed with xz"],
    ["bzip2", Buffer.from("BZh91AY&SY"), "compressed with bzip2"],
    ["lz4", Buffer.from([0x04, 0x22, 0x4d, 0x18]), "compressed with lz4"],
    ["squashfs", Buffer.from("hsqs"), "a squashfs file system"],
    ["a web page", Buffer.from("<!doctype html>"), "a web page"],
    ["erofs", Buffer.concat([Buffer.alloc(1024), Buffer.from("e2e1f5e0", "hex")]), "erofs"],
    ["ext4", Buffer.concat([Buffer.alloc(1080), Buffer.from("53ef", "hex")]), "ext4"],
  ])("says that the stream is %s", async (_, head, why) => {
    const bytes = Buffer.concat([head, Buffer.alloc(4096, 7)]);
    const error = await failure(Promise.try(() => read(bytes, 4096)));
    expect([error.code, error.message]).toEqual(["INVALID_ARGUMENT", expect.stringContaining(why)]);
  });

  test.each([1, 500, 511, 513, 514])("reports a stream truncated after %d bytes", async (end) => {
    const error = await failure(Promise.try(() => read(stream.subarray(0, end), 4096)));
    expect([error.code, error.message.slice(0, 27)]).toEqual([
      "DATA_LOSS",
      "the tar stream is truncated",
    ]);
  });

  test("accepts a stream without end blocks, and ignores bytes after them", () => {
    const bytes = tar([{ name: "a", data: "1" }]);
    expect(read(bytes.subarray(0, 1024), 100).headers).toHaveLength(1);
    expect(read(Buffer.concat([bytes, Buffer.from("<html>")]), 100).headers).toHaveLength(1);
  });

  test("refuses more entries or parts of sparse files than allowed", async () => {
    const attempt = (entries: TarEntry[]) => {
      const handler = { entry: () => {}, data: () => {}, entryEnd: () => {} };
      return failure(
        Promise.try(() => new TarReader(handler, { entriesMax: 3 }).push(tar(entries))),
      );
    };
    const named = (count: number) => Array.from({ length: count }, (_, i) => ({ name: `f${i}` }));
    expect(await attempt(named(4))).toMatchObject({
      code: "RESOURCE_EXHAUSTED",
      message: "it has more than 3 entries",
    });
    const pax = { "GNU.sparse.size": "9", "GNU.sparse.map": "0,1,4,1" };
    const sparse = ["a", "b"].map((name) => ({ name, data: "xy", pax }));
    expect((await attempt(sparse)).message).toContain("more than 3 parts");
  });

  test.each([
    ["a folder by its trailing slash", { name: "d/" }, "5", "d/"],
    ["a contiguous file as a file", { name: "f", type: "7" }, "0", "f"],
    ["a type of NUL as a file", { name: "f", type: "\0" }, "0", "f"],
    ["an unknown type as it is", { name: "f", type: "Q" }, "Q", "f"],
    ["a link without content", { name: "l", type: "2", link: "t" }, "2", "l"],
    ["a path of pax", { name: "f", pax: { path: "long" } }, "0", "long"],
    ["an empty path of pax as none", { name: "f", pax: { path: "" } }, "0", "f"],
  ])("reads %s", (_, entry, type, name) => {
    const { headers } = read(tar([entry]), 4096);
    expect(headers.map((header) => [header.type, header.name])).toEqual([[type, name]]);
  });

  const gnu = "ustar  \0";
  const time = "00000000017\0";
  test.each([
    ["ustar's prefix", "ustar\x0000", "prefix", "prefix/name"],
    ["no prefix of an unknown format", "ustar 00", "prefix", "name"],
    ["GNU's times as no prefix", gnu, time + time, "name"],
    ["GNU's binary time as no prefix", gnu, "\x80" + "\0".repeat(10) + "\x01", "name"],
    ["no time and no prefix of GNU's format", gnu, "", "name"],
    ["the prefix that Go before 1.8 wrote in GNU's format", gnu, "usr/lib", "usr/lib/name"],
    ["such a prefix with an octal number first", gnu, "00000000017/a/b", "00000000017/a/b/name"],
    ["a prefix of GNU's format that is not ASCII as none", gnu, "usr/\xe9", "name"],
  ])("reads %s", (_, magic, prefix, name) => {
    const patch = (header: Buffer) => {
      header.write(prefix, 345, "latin1");
      header.write(magic, 257, "latin1");
      header.write("\x80\0\0\0\0\x2d\xc6\xc0", 108, "latin1"); // the uid 3,000,000
    };
    const [header] = read(tar([{ name: "name", patch }]), 512).headers;
    expect([header!.name, header!.uid]).toEqual([name, 3_000_000]);
  });

  test("reads GNU's old sparse form, whose map continues in further blocks", () => {
    const part = (offset: number) =>
      `${offset.toString(8).padStart(11, "0")}\0${"1".padStart(11, "0")}\0`;
    const more = Buffer.alloc(512);
    more.write(part(4000) + part(5000), 0, "latin1");
    const header = tar([
      {
        name: "sparse",
        type: "S",
        patch: (h) => {
          h.write([0, 1000, 2000, 3000].map(part).join(""), 386, "latin1");
          h[482] = 1;
          h.write((6000).toString(8).padStart(11, "0"), 483, "latin1");
          h.write((6).toString(8).padStart(11, "0"), 124, "latin1");
        },
      },
    ]).subarray(0, 512);
    const data = Buffer.alloc(512);
    data.write("abcdef");
    const positions: number[] = [];
    const sizes: number[] = [];
    const reader = new TarReader({
      entry: ({ size, isSparse }) => sizes.push(isSparse ? size : -1),
      data: (chunk, position) => positions.push(position, chunk.length),
      entryEnd: () => {},
    });
    reader.push(Buffer.concat([header, more, data]));
    reader.end();
    expect(sizes).toEqual([6000]);
    expect(positions).toEqual([0, 1, 1000, 1, 2000, 1, 3000, 1, 4000, 1, 5000, 1]);
  });

  test("answers a damaged stream with a CriError", () => {
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
