// Tests the resolution of paths inside a root file system, which no link may leave.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { refuseLinkedSystemFolders, RootLookup } from "../../../src/node/path_in_root.ts";
import { failure } from "../../expect.ts";

const signal = new AbortController().signal;
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
])("a lookup resolves %s to %p inside the root", async (path, expected) => {
  const found = expected === undefined ? undefined : join(root, expected);
  expect(await new RootLookup(root, signal).resolve(path)).toBe(found);
});

test("a lookup reads regular files up to a limit", async () => {
  const lookup = new RootLookup(root, signal);
  expect(await lookup.read("/up", 100)).toBe("root:x:0:0\n");
  expect(await lookup.read("/etc", 100)).toBe("");
  expect(await lookup.read("/none", 100)).toBe("");
  expect((await failure(lookup.read("/up", 10))).message).toContain("over 10 bytes");
});

test("a lookup of a folder accepts directories only", async () => {
  const lookup = new RootLookup(root, signal);
  expect(await lookup.folder("/etc/deep")).toBe(join(root, "etc/deep"));
  expect(await failure(lookup.folder("/none"))).toMatchObject({ code: "NOT_FOUND" });
  expect((await failure(lookup.folder("/up"))).message).toContain("is not a directory");
});

test("refuseLinkedSystemFolders() refuses links only", () => {
  const own = join(root, "own");
  mkdirSync(join(own, "proc"), { recursive: true });
  expect(() => refuseLinkedSystemFolders(own)).not.toThrow();
  symlinkSync("proc", join(own, "dev"));
  expect(() => refuseLinkedSystemFolders(own)).toThrow("its /dev is a symlink");
});

/** Makes links of one folder, each of which leads to the next by a long way. */
function chainOfLinks(name: string, length: number): string {
  mkdirSync(join(root, name));
  const way = "./".repeat(2_000);
  for (let index = 0; index < length; index++) {
    symlinkSync(`${way}${index + 1}`, join(root, name, String(index)));
  }
  return `/${name}/0`;
}

test("all lookups of one call have one budget for the links of the image", async () => {
  const lookup = new RootLookup(root, signal);
  const short = chainOfLinks("short", 4);
  // Of 8,000 components; the links are read once, and walked each time.
  expect((await lookup.follow(short))?.at).toBe("/short/4");
  expect((await lookup.follow(short))?.at).toBe("/short/4");
  expect(await failure(lookup.follow(short))).toMatchObject({
    code: "FAILED_PRECONDITION",
    message: expect.stringContaining("lead along more than 16384 folders"),
  });
  const long = chainOfLinks("long", 39);
  expect((await failure(new RootLookup(root, signal).follow(long))).code).toBe(
    "FAILED_PRECONDITION",
  );
});

test("the paths of an image count, too, those of the call do not", async () => {
  const lookup = new RootLookup(root, signal);
  const path = "/etc/deep".repeat(100);
  for (let count = 0; count < 200; count++) await lookup.follow(path);
  for (let count = 0; count < 81; count++) lookup.charge(path);
  expect(() => lookup.charge(path)).toThrow("lead along more than 16384 folders");
});

test("a lookup ends with its call", async () => {
  const ended = AbortSignal.abort();
  expect((await failure(new RootLookup(root, ended).follow("/etc"))).code).toBe("CANCELLED");
});

test("a path that is too long for the kernel is refused", async () => {
  const path = "/long-name-of-a-folder".repeat(300);
  const error = await failure(new RootLookup(root, signal).follow(path));
  expect(error).toMatchObject({ code: "FAILED_PRECONDITION" });
});
