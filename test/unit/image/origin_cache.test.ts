// Tests that files of origins are parsed once for each version, and how much is kept.
import { afterEach, beforeEach, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { OriginCache } from "../../../src/image/origin_cache.ts";
import { capturedLog } from "../fakes.ts";

let folder: string;
beforeEach(() => void (folder = fs.mkdtempSync(join(tmpdir(), "isulad-origins-"))));
afterEach(() => fs.rmSync(folder, { recursive: true }));

const origin = (tag: string) => ({
  repository: "registry.test/app",
  tags: [tag],
  digest: "sha256:1",
  isPrivate: false,
  manifests: {},
});
const textOf = (tag: string) => JSON.stringify({ version: 1, origins: [origin(tag)] });

function write(name: string, text: string): string {
  const path = join(folder, name);
  fs.writeFileSync(`${path}.new`, text);
  fs.renameSync(`${path}.new`, path);
  return path;
}

test("a file is parsed once for each version", async () => {
  const cache = new OriginCache(capturedLog("warn").log);
  const path = write("a", textOf("1"));
  const first = await cache.read(path);
  expect(first).toEqual([origin("1")]);
  expect(await cache.read(path)).toBe(first);
  write("a", textOf("2"));
  expect(await cache.read(path)).toEqual([origin("2")]);
  fs.rmSync(path);
  expect(await cache.read(path)).toEqual([]);
});

test("a damaged file is logged once for each version, not for each request", async () => {
  const { log, lines } = capturedLog("warn");
  const cache = new OriginCache(log);
  const path = write("a", "{");
  for (let count = 0; count < 3; count++) expect(await cache.read(path)).toEqual([]);
  expect(lines).toHaveLength(1);
  write("a", "[]");
  expect(await cache.read(path)).toEqual([]);
  expect(lines).toHaveLength(2);
});

test("those read last are kept, within the bound", async () => {
  const text = textOf("1");
  const cache = new OriginCache(capturedLog("warn").log, 2 * text.length);
  const [pathA, pathB, pathC] = [write("a", text), write("b", text), write("c", text)];
  const a = await cache.read(pathA);
  const b = await cache.read(pathB);
  const c = await cache.read(pathC); // in the place of a
  expect(await cache.read(pathC)).toBe(c);
  expect(await cache.read(pathB)).toBe(b);
  const again = await cache.read(pathA); // in the place of c
  expect(again).not.toBe(a);
  expect(await cache.read(pathA)).toBe(again);
  expect(await cache.read(pathB)).toBe(b);
  expect(await cache.read(pathC)).not.toBe(c);
});

test("a file over the bound is read, and not kept", async () => {
  const cache = new OriginCache(capturedLog("warn").log, 10);
  const path = write("a", textOf("1"));
  const first = await cache.read(path);
  expect(first).toEqual([origin("1")]);
  expect(await cache.read(path)).not.toBe(first);
});
