// Tests the disk to which a path belongs, and disks that do not answer.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, statSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { diskOf, remoteDisk } from "../../src/sys/disk.ts";
import { deviceNumbers } from "../../src/sys/path.ts";
import { silentDisk } from "../silent_disk.ts";

const folder = realpathSync(mkdtempSync(join(tmpdir(), "isulad-disk-")));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** What the kernel says of a path. */
function device(path: string): string {
  const { major, minor } = deviceNumbers(statSync(path, { bigint: true }).dev);
  return `${major}:${minor}`;
}

test("a path's disk is the one that the kernel would say, through links and before it is made", () => {
  mkdirSync(join(folder, "logs"));
  symlinkSync("/dev", join(folder, "absolute"));
  symlinkSync("logs/../absolute", join(folder, "relative"));
  symlinkSync("loop", join(folder, "loop"));
  for (const path of ["/", "/dev", "/proc/self", folder, join(folder, "logs")]) {
    expect(diskOf(path)).toBe(device(path));
  }
  expect(diskOf(join(folder, "logs/pod/container"))).toBe(device(folder));
  expect(diskOf(join(folder, "absolute/x"))).toBe(device("/dev"));
  expect(diskOf(join(folder, "relative"))).toBe(device("/dev"));
  expect(diskOf(join(folder, "absolute/../tmp"))).toBe(device("/"));
  expect(diskOf(join(folder, "loop/x"))).toBe(device(folder));
});

test("a disk that does not answer is not asked (needs root)", () => {
  const path = join(folder, "silent");
  symlinkSync(join(path, "pods"), join(folder, "pods"));
  using _ = silentDisk(path);
  const disk = diskOf(join(path, "pod/container"));
  expect(disk).not.toBe(device(folder));
  expect(diskOf(path)).toBe(disk);
  expect(diskOf(join(folder, "pods/x"))).toBe(disk);
  for (const way of [path, join(path, "pod"), join(folder, "pods/x"), `${path}/../logs`]) {
    expect(remoteDisk(way)?.point).toBe(path);
  }
  for (const way of [
    folder,
    join(path, ".."),
    "/proc/self/root",
    "/dev/null",
    "/sys/fs/cgroup/x",
  ]) {
    expect(remoteDisk(way)).toBeUndefined();
  }
});
