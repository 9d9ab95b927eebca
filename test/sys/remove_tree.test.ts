// Tests that trees are removed whatever is in them: names that are no text, any depth, symlinks, files that come
// meanwhile, and folders of a damaged file system, which cannot be removed at all.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { removeTree, removeTreeNow } from "../../src/sys/remove_tree.ts";
import { DamagedDisk } from "../damaged_disk.ts";
import { failure } from "../expect.ts";

const dir = fs.mkdtempSync(join(tmpdir(), "isulad-remove-"));
const tree = join(dir, "tree");
const outside = join(dir, "outside");
beforeAll(() => {
  fs.mkdirSync(outside);
  fs.writeFileSync(join(outside, "kept"), "kept");
});
afterAll(() => fs.rmSync(dir, { recursive: true }));

const ways: [string, (path: string) => Promise<void>][] = [
  ["removeTree", removeTree],
  ["removeTreeNow", async (path) => removeTreeNow(path)],
];

function fill(): void {
  fs.mkdirSync(join(tree, "a/b/c"), { recursive: true });
  for (let i = 0; i < 200; i++) fs.writeFileSync(join(tree, `a/b/${i}`), "");
  fs.writeFileSync(Buffer.concat([Buffer.from(`${tree}/a/`), Buffer.from([0xff, 0xfe])]), "");
  fs.mkdirSync(Buffer.concat([Buffer.from(`${tree}/a/`), Buffer.from([0xfd])]));
  fs.symlinkSync(outside, join(tree, "a/folder"));
  fs.symlinkSync("/nowhere", join(tree, "a/b/c/broken"));
  fs.chmodSync(join(tree, "a/b"), 0);
}

test.each(ways)("%s removes files, folders and symlinks, and follows none", async (_, remove) => {
  fill();
  fs.symlinkSync(tree, join(dir, "link"));
  await remove(join(dir, "link"));
  expect(fs.existsSync(tree)).toBe(true);
  await remove(join(tree, "a/folder"));
  await remove(tree);
  expect(fs.readdirSync(dir)).toEqual(["outside"]);
  expect(fs.readdirSync(outside)).toEqual(["kept"]);
  await remove(tree); // again
  fs.writeFileSync(tree, "a file");
  await remove(tree);
  expect(fs.existsSync(tree)).toBe(false);
});

/** False where the file system lacks the attribute, or this process the capability. */
function canFreeze(): boolean {
  const file = join(dir, "probe");
  fs.writeFileSync(file, "");
  const { status } = spawnSync("chattr", ["+i", file]);
  if (status === 0) execFileSync("chattr", ["-i", file]);
  else console.error("skipped, chattr +i fails here: what needs immutable files");
  fs.rmSync(file);
  return status === 0;
}

test.skipIf(!canFreeze()).each(ways)(
  "%s removes files and folders that are immutable or append-only, and changes none behind a symlink",
  async (_, remove) => {
    fill();
    const kept = join(outside, "kept");
    fs.symlinkSync(kept, join(tree, "a/b/c/link"));
    execFileSync("mkfifo", [join(tree, "a/b/c/fifo")]);
    execFileSync("chattr", ["+i", kept, join(tree, "a/b/1"), join(tree, "a/b/c")]);
    execFileSync("chattr", ["+a", join(tree, "a/b/2"), join(tree, "a/b")]);
    execFileSync("chattr", ["+i", tree]);
    try {
      await remove(tree);
      expect(fs.existsSync(tree)).toBe(false);
      expect(execFileSync("lsattr", [kept], { encoding: "utf8" })).toMatch(/^\S*i/);
    } finally {
      spawnSync("chattr", ["-R", "-f", "-i", "-a", dir]); // fails at the symlinks
      fs.rmSync(tree, { recursive: true, force: true });
    }
  },
);

test("removeTree removes folders in folders whose path is longer than the kernel takes", async () => {
  const script = `
import os
os.mkdir("${tree}"); os.chdir("${tree}")
for i in range(500):
    for name in "x" * 200, "y": os.mkdir(name)
    open("file", "w").close(); os.chdir("x" * 200)
`;
  execFileSync("python3", ["-c", script]);
  await removeTree(tree);
  expect(fs.existsSync(tree)).toBe(false);
});

test.each(ways)(
  "%s removes a folder into which a process writes for a while",
  async (_, remove) => {
    fs.mkdirSync(tree);
    const writer = spawn(
      "sh",
      ["-c", `i=0; while [ $i -lt 3000 ]; do i=$((i+1)); : >"${tree}/$i"; done`],
      {
        stdio: "ignore",
      },
    );
    const ended = new Promise((resolve) => writer.once("exit", resolve));
    while (fs.readdirSync(tree).length === 0)
      await new Promise((resolve) => setTimeout(resolve, 1));
    await remove(tree).catch(() => {});
    await ended;
    await remove(tree);
    expect(fs.existsSync(tree)).toBe(false);
  },
);

test.each(ways)(
  "%s reports a folder of a damaged file system, and removes the rest",
  async (_, remove) => {
    using disk = new DamagedDisk(join(dir, "disk"));
    const damaged = join(disk.folder, "tree");
    fs.mkdirSync(join(damaged, "bad"), { recursive: true });
    disk.damage("tree/bad");
    fs.mkdirSync(join(damaged, "after"));
    fs.mkdirSync(join(damaged, "last"));
    const { message } = await failure(remove(damaged));
    expect(message).toContain(`cannot remove ${damaged}/bad: it lists no entry and is not empty`);
    expect(fs.readdirSync(damaged)).toEqual(["bad"]);
  },
);
