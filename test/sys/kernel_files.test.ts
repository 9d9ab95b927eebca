// Tests kernel files that stay open: each read returns the present state, and none stays open longer than
// needed.
import { afterAll, describe, expect, test } from "bun:test";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readlinkSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { cgroupFolders, cgroupMounts } from "../../src/node/cgroup.ts";
import { KernelFiles } from "../../src/sys/file.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-kept-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

function file(name: string, text: string): string {
  const path = join(dir, name);
  writeFileSync(path, text);
  return path;
}

/** Open files below a folder. */
function openBelow(folder: string): string[] {
  const links = readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/self/fd/${fd}`)];
    } catch {
      return []; // the listing's own
    }
  });
  return links.filter((link) => link.startsWith(`${folder}/`)).sort();
}

describe("KernelFiles", () => {
  test("tells what a file says now, and closes it with its owner's others", () => {
    using files = new KernelFiles(10);
    const [one, two] = [file("one", "1\n"), file("two", "2\n")];
    expect(files.read("a", one)).toBe("1\n");
    expect(files.read("b", two)).toBe("2\n");
    writeFileSync(one, "11\n");
    expect(files.read("a", one)).toBe("11\n");
    expect(openBelow(dir)).toEqual([one, two]);
    expect(files.owners()).toEqual(["a", "b"]);
    files.close("a");
    expect(openBelow(dir)).toEqual([two]);
    expect(files.owners()).toEqual(["b"]);
  });

  test("looks for an absent file at each reading", () => {
    using files = new KernelFiles(10);
    expect(files.read("a", join(dir, "late"))).toBeUndefined();
    expect(files.read("a", file("late", "here\n"))).toBe("here\n");
  });

  test("keeps no more open than it may, reads the others too, and closes all in the end", () => {
    const paths = ["p", "q", "r"].map((name) => file(name, name));
    {
      using files = new KernelFiles(2);
      for (let round = 0; round < 2; round++) {
        expect(paths.map((path) => files.read(path, path))).toEqual(["p", "q", "r"]);
        expect(openBelow(dir)).toEqual(paths.slice(0, 2));
      }
      files.close(paths[0]!);
      expect(files.read(paths[2]!, paths[2]!)).toBe("r");
      expect(openBelow(dir)).toEqual(paths.slice(1));
    }
    expect(openBelow(dir)).toEqual([]);
  });

  test("closes the file of a cgroup that has gone", () => {
    const folders = cgroupFolders(cgroupMounts(), `/isulad-kept-${process.pid}`);
    const folder = folders["memory"] ?? folders["unified"]!;
    mkdirSync(folder);
    using files = new KernelFiles(2);
    try {
      expect(files.read("a", join(folder, "cgroup.procs"))).toBe("");
      expect(openBelow(folder)).toHaveLength(1);
    } finally {
      rmdirSync(folder);
    }
    expect(files.read("a", join(folder, "cgroup.procs"))).toBeUndefined();
    expect(files.read("a", join(folder, "cgroup.procs"))).toBeUndefined();
    expect(openBelow(folder)).toEqual([]);
  });
});
