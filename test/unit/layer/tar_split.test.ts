// Tests that a tree and its tar-split reproduce the tar stream byte for byte, for any chunk sizes.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Descriptor } from "../../../src/sys/descriptor.ts";
import {
  readTarSplit,
  tarSplitStreamBytes,
  TarSplitWriter,
  type Unpacker,
} from "../../../src/layer/tar_split.ts";
import { TarReader, type TarHeader } from "../../../src/layer/tar_reader.ts";
import { tar, type TarEntry } from "../../image_maker.ts";
import { failure } from "../../expect.ts";
import { fuzzSeed, random } from "../../random.ts";

let dir: string;
beforeAll(() => (dir = fs.mkdtempSync(join(tmpdir(), "isulad-tar-split-"))));
afterAll(() => fs.rmSync(dir, { recursive: true }));

/** Keeps files in memory by name, except those that end with ".gone". */
class Files implements Unpacker {
  readonly files = new Map<string, { parts: Buffer[]; length: number }>();
  writing: string | undefined;
  hasReplaced = false;

  entry({ name, type }: TarHeader): void {
    if (type !== "0" || name.endsWith(".gone")) return;
    this.hasReplaced ||= this.files.has(name);
    this.writing = name;
    this.files.set(name, { parts: [], length: 0 });
  }

  data(chunk: Uint8Array, position: number): void {
    if (this.writing === undefined) return;
    const file = this.files.get(this.writing)!;
    file.parts.push(Buffer.alloc(position - file.length), Buffer.from(chunk));
    file.length = position + chunk.length;
  }

  entryEnd(): void {
    this.writing = undefined;
  }

  read(path: Buffer, offset: number, length: number): Buffer {
    return Buffer.concat(this.files.get(path.toString())!.parts).subarray(offset, offset + length);
  }
}

/** Unpacks a stream in chunks, and rebuilds it from the files and the tar-split. */
function rebuilt(stream: Buffer, chunkOf: () => number) {
  const path = join(dir, randomBytes(4).toString("hex"));
  const file = Descriptor.create(path);
  const files = new Files();
  const tarSplit = new TarSplitWriter(files, file);
  const reader = new TarReader(tarSplit);
  for (let at = 0; at < stream.length;) {
    const chunk = Buffer.from(stream.subarray(at, at + chunkOf()));
    tarSplit.pass(chunk, (bytes) => reader.push(bytes));
    at += chunk.length;
  }
  tarSplit.end();
  file.close();
  const bytes: Uint8Array[] = [];
  using written = Descriptor.open(path, fs.constants.O_RDONLY);
  for (const part of readTarSplit(written)) {
    bytes.push(
      part.kind === "bytes" ? part.bytes : files.read(part.path, part.offset, part.length),
    );
  }
  const streamBytes = tarSplitStreamBytes(path);
  return { streamBytes, stream: Buffer.concat(bytes), tarSplitBytes: fs.statSync(path).size, path };
}

const entries: TarEntry[] = [
  { name: "d/", type: "5" },
  { name: "empty", data: "" },
  { name: "one", data: "1" },
  { name: "block", data: "b".repeat(512) },
  { name: "big", data: randomBytes(300_000) },
  { name: `d/${"long/".repeat(40)}name`, data: "long", pax: { "SCHILY.xattr.user.x": "y" } },
  { name: "d/.gone", data: randomBytes(3000) },
  { name: "hard", type: "1", link: "one" },
  { name: "soft", type: "2", link: "one" },
];

test.each([7, 511, 512, 513, 65_536, 1 << 20])(
  "a stream in chunks of %d bytes is reproduced",
  (size) => {
    const stream = tar(entries);
    const made = rebuilt(stream, () => size);
    expect(made.streamBytes).toBe(stream.length);
    expect(made.stream.equals(stream)).toBe(true);
  },
);

test("a small stream in chunks of 1 byte is reproduced", () => {
  const stream = tar(entries.filter(({ name }) => name !== "big"));
  const made = rebuilt(stream, () => 1);
  expect(made.streamBytes).toBe(stream.length);
  expect(made.stream.equals(stream)).toBe(true);
});

test("a stream with bytes after its end is reproduced; the tar-split takes at most a fiftieth of its size", () => {
  const many = Array.from({ length: 2_000 }, (_, i) => ({ name: `usr/share/f${i}`, data: "x" }));
  const stream = Buffer.concat([tar(many), Buffer.alloc(9_728), Buffer.from("behind the end")]);
  const made = rebuilt(stream, () => 100_000);
  expect(made.stream.equals(stream)).toBe(true);
  expect(made.tarSplitBytes).toBeLessThan(stream.length / 50);
});

test("a stream in chunks of random sizes is reproduced", () => {
  const next = random(fuzzSeed);
  const stream = tar(entries);
  for (let i = 0; i < 8; i++) {
    const made = rebuilt(stream, () => 1 + Math.floor(next() * 3000));
    expect([fuzzSeed, made.stream.equals(stream)]).toEqual([fuzzSeed, true]);
  }
});

test("there is none when an entry replaces another one, or when nearly nothing is file content", () => {
  const twice = tar([
    { name: "f", data: "1" },
    { name: "f", data: "2" },
  ]);
  expect(rebuilt(twice, () => 4096).streamBytes).toBe(0);
  const noise = Buffer.concat([tar([]), randomBytes(65 << 20)]);
  const made = rebuilt(noise, () => 1 << 20);
  expect(made.streamBytes).toBe(0);
  expect(made.tarSplitBytes).toBe(8);
});

test("a damaged tar-split is DATA_LOSS", async () => {
  const { path } = rebuilt(tar(entries), () => 4096);
  const bytes = fs.readFileSync(path);
  const read = async (damaged: Uint8Array) => {
    fs.writeFileSync(path, damaged);
    using tarSplit = Descriptor.open(path, fs.constants.O_RDONLY);
    return [...readTarSplit(tarSplit)].length;
  };
  expect((await failure(read(bytes.subarray(0, bytes.length - 5)))).code).toBe("DATA_LOSS");
  expect((await failure(read(bytes.subarray(0, 2)))).code).toBe("DATA_LOSS");
  const flipped = Buffer.from(bytes);
  flipped[12]! ^= 0xff;
  expect((await failure(read(flipped))).code).toBe("DATA_LOSS");
});

test("streams of GNU tar with links and holes are reproduced", () => {
  const folder = join(dir, "tree");
  fs.mkdirSync(join(folder, "a/b"), { recursive: true });
  fs.writeFileSync(join(folder, "a/b/f"), randomBytes(100_000));
  fs.linkSync(join(folder, "a/b/f"), join(folder, "g"));
  fs.symlinkSync("a/b/f", join(folder, "s"));
  fs.truncateSync(join(folder, "g"), 3_000_000); // with a hole
  for (const format of ["gnu", "pax", "ustar"]) {
    const sparse = format === "ustar" ? [] : ["--sparse"];
    const argv = ["-c", `--format=${format}`, ...sparse, "-C", folder, "."];
    const { stdout } = spawnSync("tar", argv, { maxBuffer: 1 << 24 });
    expect(rebuilt(stdout, () => 10_000).stream.equals(stdout)).toBe(true);
  }
});
