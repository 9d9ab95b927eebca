// Tests the volumes of an image: copied content, paths without a volume, refused paths, and the limit of their number.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeVolumes } from "../../../src/node/image_volumes.ts";
import { failure } from "../../expect.ts";
import { capturedLog } from "../fakes.ts";

const scratch = mkdtempSync(join(tmpdir(), "isulad-volumes-"));
afterAll(() => rmSync(scratch, { recursive: true }));
const rootfs = join(scratch, "rootfs");
mkdirSync(join(rootfs, "data"), { recursive: true });
writeFileSync(join(rootfs, "data/file"), "content");
mkdirSync(join(rootfs, "var"));
symlinkSync("../run", join(rootfs, "var/run")); // which is missing
symlinkSync("/../proc", join(rootfs, "kernel"));

let count = 0;
const { log, lines } = capturedLog("info");
const make = (paths: string[], destinations: string[] = []) => {
  const container = `container${count++}`;
  const folder = join(scratch, container);
  const signal = AbortSignal.timeout(120_000);
  return makeVolumes({ container, folder, rootfs, paths, destinations, signal, log });
};

test("makeVolumes() copies the image's content, once for each path that no mount covers", async () => {
  const volumes = await make(["/data", "data/", "/new", "/mounted"], ["/mounted/"]);
  expect(volumes.map(({ path }) => path)).toEqual(["/data", "/new"]);
  expect(readFileSync(join(volumes[0]!.source, "file"), "utf8")).toBe("content");
});

test("makeVolumes() makes none where a link of the image leads to a mount", async () => {
  const volumes = await make(["/var/run", "/var/run/a", "/run/b", "/data"], ["/run", "/var/run/b"]);
  expect(volumes.map(({ path }) => path)).toEqual(["/var/run/a", "/data"]);
});

test("makeVolumes() leaves out, and logs, volumes at paths of the runtime's own mounts", async () => {
  const paths = [
    "/proc",
    "/proc/sys/",
    "/sys/fs/cgroup",
    "a/../sys",
    "/dev",
    "/",
    "/../..",
    "/kernel/x",
  ];
  lines.length = 0;
  const volumes = await make([...paths, "/data", "/dev/own", "/system"]);
  expect(volumes.map(({ path }) => path)).toEqual(["/data", "/dev/own", "/system"]);
  expect(lines).toHaveLength(1);
  expect(lines[0]).toContain("/proc /proc/sys /sys/fs/cgroup /sys /dev / /kernel/x");
});

test.each([
  ["a\0b", "has a NUL byte"],
  ["/data/file", "is not a directory"],
])("makeVolumes() refuses %p", async (path, message) => {
  expect((await failure(make([path]))).message).toContain(message);
});

test("makeVolumes() refuses more than 256 volumes", async () => {
  const paths = Array.from({ length: 257 }, (_, index) => `/v${index}`);
  expect((await failure(make(paths))).message).toContain("257 volumes exceed the limit");
});
