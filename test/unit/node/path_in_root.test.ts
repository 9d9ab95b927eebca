// Tests the resolution of paths inside a root file system, which no link may leave.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  folderInRoot,
  readInRoot,
  refuseLinkedSystemFolders,
  resolveInRoot,
} from "../../../src/node/path_in_root.ts";
import { failure } from "../../expect.ts";

const root = realpathSync(mkdtempSync(join(tmpdir(), "isulad-root-")));
afterAll(() => rmSync(root, { recursive: true }));
mkdirSync(join(root, "etc/deep"), { recursive: true });
writeFileSync(join(root, "etc/passwd"), "root:x:0:0\n");
const links = {
  up: "../../../etc/passwd",
  absolute: "/etc/passwd",
  relative: "etc/passwd",
  chain: "absolute",
  loop: "loop",
  dangling: "/none",
  "etc/deep/up": "../passwd",
};
for (const [name, target] of Object.entries(links)) symlinkSync(target, join(root, name));

test.each<[string, string | undefined]>([
  ["/etc/passwd", "etc/passwd"],
  ["../../etc/passwd", "etc/passwd"],
  ["up", "etc/passwd"],
  ["absolute", "etc/passwd"],
  ["relative", "etc/passwd"],
  ["chain", "etc/passwd"],
  ["/etc/deep/up", "etc/passwd"],
  ["/etc/deep/..", "etc"],
  ["loop", undefined],
  ["dangling", undefined],
  ["/none", undefined],
  ["/etc/passwd/x", undefined],
])("resolveInRoot() resolves %s to %p inside the root", async (path, expected) => {
  const found = expected === undefined ? undefined : join(root, expected);
  expect(await resolveInRoot(root, path)).toBe(found);
});

test("readInRoot() reads regular files up to a limit", async () => {
  expect(await readInRoot(root, "/up", 100)).toBe("root:x:0:0\n");
  expect(await readInRoot(root, "/etc", 100)).toBe("");
  expect(await readInRoot(root, "/none", 100)).toBe("");
  expect((await failure(readInRoot(root, "/up", 10))).message).toContain("over 10 bytes");
});

test("folderInRoot() accepts directories only", async () => {
  expect(await folderInRoot(root, "/etc/deep")).toBe(join(root, "etc/deep"));
  expect(await failure(folderInRoot(root, "/none"))).toMatchObject({ code: "NOT_FOUND" });
  expect((await failure(folderInRoot(root, "/up"))).message).toContain("is not a directory");
});

test("refuseLinkedSystemFolders() refuses links only", () => {
  const own = join(root, "own");
  mkdirSync(join(own, "proc"), { recursive: true });
  expect(() => refuseLinkedSystemFolders(own)).not.toThrow();
  symlinkSync("proc", join(own, "dev"));
  expect(() => refuseLinkedSystemFolders(own)).toThrow("its /dev is a symlink");
});
