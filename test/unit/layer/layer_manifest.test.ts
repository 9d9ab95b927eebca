// Tests the layer manifest: conversion from tar headers, parts of sparse files, and the file's limit.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  addPart,
  entryFromHeader,
  implicitFolder,
  isKept,
  manifestBytesMax,
  readLayerManifest,
  writeLayerManifest,
  type ManifestEntry,
} from "../../../src/layer/layer_manifest.ts";
import type { TarHeader } from "../../../src/layer/tar_reader.ts";
import { Descriptor } from "../../../src/sys/descriptor.ts";
import { failure } from "../../expect.ts";

let dir: string;
beforeAll(() => (dir = mkdtempSync(join(tmpdir(), "isulad-layer-manifest-"))));
afterAll(() => rmSync(dir, { recursive: true }));

function header(o: Partial<TarHeader>): TarHeader {
  const rest = { mode: 0o644, uid: 1, gid: 2, size: 7, mtime: { s: 3, ns: 4 }, offset: 512 };
  const numbers = { major: 8, minor: 9, xattrs: [], isSparse: false };
  return { name: "f", link: "target", type: "0", ...rest, ...numbers, ...o };
}

function write(path: string, entries: Map<string, ManifestEntry>, bytesMax = 1 << 20): void {
  using file = Descriptor.create(path);
  writeLayerManifest(file, entries, bytesMax);
}

describe("entryFromHeader()", () => {
  test.each([
    ["a file", "0", { kind: "file", size: 7, target: "", major: 0, minor: 0 }],
    ["a symlink", "2", { kind: "symlink", size: 0, target: "target", major: 0, minor: 0 }],
    ["a character device", "3", { kind: "char", size: 0, target: "", major: 8, minor: 9 }],
    ["a block device", "4", { kind: "block", size: 0, target: "", major: 8, minor: 9 }],
    ["a folder", "5", { kind: "folder", size: 0, target: "", major: 0, minor: 0 }],
    ["a FIFO", "6", { kind: "fifo", size: 0, target: "", major: 0, minor: 0 }],
  ])("takes from %s only its own fields", (_, type, fields) => {
    expect(entryFromHeader(header({ type }), false)).toMatchObject(fields);
  });

  test("starts the parts of a sparse file, and keeps only some attributes", () => {
    const xattrs: TarHeader["xattrs"] = [
      ["user.a", Buffer.from("1")],
      ["security.selinux", Buffer.from("2")],
    ];
    const entry = entryFromHeader(header({ isSparse: true, xattrs }), true);
    expect(entry).toMatchObject({ parts: [0, 0], isOpaque: true });
    expect(entry.xattrs.map(([name]) => name)).toEqual(["user.a"]);
  });
});

test.each([
  ["user.mime", true],
  ["user.overlay.opaque", false],
  ["security.capability", true],
  ["security.selinux", false],
  ["system.posix_acl_access", true],
  ["trusted.overlay.opaque", false],
])("isKept() of %s is %p", (name, isIt) => expect(isKept(name)).toBe(isIt));

test("addPart() extends an adjacent part and starts another after a hole", () => {
  const parts = [0, 0];
  addPart(parts, 0, 5);
  addPart(parts, 5, 3);
  addPart(parts, 100, 2);
  expect(parts).toEqual([0, 8, 100, 2]);
});

test("manifestBytesMax() is at least 64 MiB and grows with the entries", () => {
  expect(manifestBytesMax(10)).toBe(64 << 20);
  expect(manifestBytesMax(1_000_000)).toBe(1_024_000_000);
});

test("a manifest is read as it was written, hard links as one entry", () => {
  const path = join(dir, "links");
  const file = entryFromHeader(header({ xattrs: [["user.a", Buffer.from([0, 255])]] }), false);
  file.crc = 123;
  const entries = new Map([
    ["", implicitFolder()],
    ["a", file],
    ["odd\udcff", { ...implicitFolder(), isOpaque: true }],
    ["b", file],
  ]);
  write(path, entries);
  const read = readLayerManifest(path);
  expect(read).toEqual(entries);
  expect(read.get("b")).toBe(read.get("a"));
  expect(read.get("")).not.toBe(read.get("odd\udcff"));
});

test("a hard link to a later line is an error", () => {
  const path = join(dir, "broken");
  writeFileSync(path, `["a",5]\n`);
  expect(() => readLayerManifest(path)).toThrow("line 5");
});

test("a manifest above its limit is RESOURCE_EXHAUSTED, also by JSON's escapes", async () => {
  const path = join(dir, "large");
  const names = Array.from({ length: 400 }, (_, i) => `${i}${"\u0001".repeat(1000)}`);
  const entries = new Map(names.map((name) => [name, implicitFolder()]));
  const error = await failure(Promise.try(() => write(path, entries, 1 << 20)));
  expect(error.code).toBe("RESOURCE_EXHAUSTED");
  expect(error.message).toContain("layer-max-entries");
  expect(statSync(path).size).toBeLessThanOrEqual(1 << 20);
  write(join(dir, "fits"), entries, 4 << 20);
  expect(readFileSync(join(dir, "fits"), "utf8").split("\n")).toHaveLength(401);
});
