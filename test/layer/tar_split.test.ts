// A layer's tar stream made again from its tree: byte for byte, whatever the chunks it came in.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Descriptor } from "../../src/sys/descriptor.ts";
import {
  readRecipe,
  recipeLength,
  RecipeWriter,
  type Unpacker,
} from "../../src/layer/tar_split.ts";
import { TarReader, type TarHeader } from "../../src/layer/tar.ts";
import { tar, type TarEntry } from "../image_maker.ts";
import { failure } from "../expect.ts";
import { fuzzSeed, random } from "../random.ts";

let dir: string;
beforeAll(() => (dir = fs.mkdtempSync(join(tmpdir(), "isulad-recipe-"))));
afterAll(() => fs.rmSync(dir, { recursive: true }));

/** Keeps files in memory, by name; those that end with ".gone" are not kept. */
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

/** Unpacks a stream in such chunks; what its recipe makes of it, and how large the recipe is. */
function madeAgain(stream: Buffer, chunkOf: () => number) {
  const path = join(dir, randomBytes(4).toString("hex"));
  const file = Descriptor.create(path);
  const files = new Files();
  const recipe = new RecipeWriter(files, file);
  const reader = new TarReader(recipe);
  for (let at = 0; at < stream.length;) {
    const chunk = Buffer.from(stream.subarray(at, at + chunkOf()));
    recipe.pass(chunk, (bytes) => reader.push(bytes));
    at += chunk.length;
  }
  recipe.end();
  file.close();
  const bytes: Uint8Array[] = [];
  using again = Descriptor.open(path, fs.constants.O_RDONLY);
  for (const part of readRecipe(again)) {
    bytes.push(
      part.kind === "bytes" ? part.bytes : files.read(part.path, part.offset, part.length),
    );
  }
  const streamBytes = recipeLength(path);
  return { streamBytes, stream: Buffer.concat(bytes), recipeBytes: fs.statSync(path).size, path };
}

const entries: TarEntry[] = [
  { name: "d/", type: "5" },
  { name: "empty", data: "" },
  { name: "one", data: "1" },
  { name: "block", data: "b".repeat(512) },
  { name: "big", data: randomBytes(700_000) },
  { name: `d/${"long/".repeat(40)}name`, data: "long", pax: { "SCHILY.xattr.user.x": "y" } },
  { name: "d/.gone", data: randomBytes(3000) },
  { name: "hard", type: "1", link: "one" },
  { name: "soft", type: "2", link: "one" },
];

test.each([1, 7, 511, 512, 513, 65_536, 1 << 20])("in chunks of %d bytes", (size) => {
  const stream = tar(entries);
  const made = madeAgain(stream, () => size);
  expect(made.streamBytes).toBe(stream.length);
  expect(made.stream.equals(stream)).toBe(true);
});

test("with anything behind the end mark, and many entries, in a hundredth of the room", () => {
  const many = Array.from({ length: 5_000 }, (_, i) => ({ name: `usr/share/f${i}`, data: "x" }));
  const stream = Buffer.concat([tar(many), Buffer.alloc(9_728), Buffer.from("behind the end")]);
  const made = madeAgain(stream, () => 100_000);
  expect(made.stream.equals(stream)).toBe(true);
  expect(made.recipeBytes).toBeLessThan(stream.length / 50);
});

test("in chunks of any length", () => {
  const next = random(fuzzSeed);
  const stream = tar(entries);
  for (let i = 0; i < 20; i++) {
    const made = madeAgain(stream, () => 1 + Math.floor(next() * 3000));
    expect([fuzzSeed, made.stream.equals(stream)]).toEqual([fuzzSeed, true]);
  }
});

test("there is none where an entry replaced another one, or where nearly all of it is no file", () => {
  const twice = tar([
    { name: "f", data: "1" },
    { name: "f", data: "2" },
  ]);
  expect(madeAgain(twice, () => 4096).streamBytes).toBe(0);
  const noise = Buffer.concat([tar([]), randomBytes(65 << 20)]);
  const made = madeAgain(noise, () => 1 << 20);
  expect(made.streamBytes).toBe(0);
  expect(made.recipeBytes).toBe(8);
});

test("a damaged recipe is DATA_LOSS", async () => {
  const { path } = madeAgain(tar(entries), () => 4096);
  const bytes = fs.readFileSync(path);
  const read = async (damaged: Uint8Array) => {
    fs.writeFileSync(path, damaged);
    using recipe = Descriptor.open(path, fs.constants.O_RDONLY);
    return [...readRecipe(recipe)].length;
  };
  expect((await failure(read(bytes.subarray(0, bytes.length - 5)))).code).toBe("DATA_LOSS");
  expect((await failure(read(bytes.subarray(0, 2)))).code).toBe("DATA_LOSS");
  const flipped = Buffer.from(bytes);
  flipped[12]! ^= 0xff;
  expect((await failure(read(flipped))).code).toBe("DATA_LOSS");
});

test("GNU tar's streams, and what it makes of this machine's own files", () => {
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
    expect(madeAgain(stdout, () => 10_000).stream.equals(stdout)).toBe(true);
  }
});
