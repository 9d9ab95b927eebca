// Tests the volumes of an image: copied content, refused paths, and the limit of their number.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeVolumes } from "../../../src/node/image_volumes.ts";
import { failure } from "../../expect.ts";

const scratch = mkdtempSync(join(tmpdir(), "isulad-volumes-"));
afterAll(() => rmSync(scratch, { recursive: true }));
const rootfs = join(scratch, "rootfs");
mkdirSync(join(rootfs, "data"), { recursive: true });
writeFileSync(join(rootfs, "data/file"), "content");

let count = 0;
const make = (paths: string[], destinations: string[] = []) => {
  const folder = join(scratch, `container${count++}`);
  return makeVolumes({ folder, rootfs, paths, destinations, signal: AbortSignal.timeout(10_000) });
};

test("makeVolumes() copies the image's content, once for each path that no mount covers", async () => {
  const volumes = await make(["/data", "data/", "/new", "/mounted"], ["/mounted/"]);
  expect(volumes.map(({ path }) => path)).toEqual(["/data", "/new"]);
  expect(readFileSync(join(volumes[0]!.source, "file"), "utf8")).toBe("content");
});

test.each([
  ["/proc", "would cover a system directory"],
  ["/sys/fs", "would cover a system directory"],
  ["/dev", "would cover a system directory"],
  ["/", "would cover a system directory"],
  ["a\0b", "would cover a system directory"],
  ["/data/file", "is not a directory"],
])("makeVolumes() refuses %p", async (path, message) => {
  expect((await failure(make([path]))).message).toContain(message);
});

test("makeVolumes() refuses more than 256 volumes", async () => {
  const paths = Array.from({ length: 257 }, (_, index) => `/v${index}`);
  expect((await failure(make(paths))).message).toContain("257 volumes exceed the limit");
});
