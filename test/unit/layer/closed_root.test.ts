// Tests that a root which is closed to the container's user is recognized.
import { afterAll, beforeAll, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { closedRootProblem } from "../../../src/layer/closed_root.ts";

let dir: string;
beforeAll(() => {
  dir = fs.mkdtempSync(join(tmpdir(), "isulad-root-"));
  fs.mkdirSync(join(dir, "rootfs"));
});
afterAll(() => fs.rmSync(dir, { recursive: true }));

const user = { uid: 1000, gid: 1000, groups: [50] };
const mapped = { uid: 100_000, gid: 100_000 };
// name of the case, mode, owner and group of the root, user, the node's ids of the pod's root, expected mode
test.each<[string, number, [number, number], typeof user, typeof mapped | undefined, string]>([
  ["closed to others", 0o700, [0, 0], user, undefined, "0700"],
  ["closed to others, but not to a group", 0o1750, [0, 7], user, undefined, "1750"],
  ["without the right to search", 0o744, [0, 0], user, undefined, "0744"],
  ["closed to its group", 0o701, [0, 50], user, undefined, "0701"],
  ["closed to a mapped user", 0o700, [100_000, 100_000], user, mapped, "0700"],
  ["open", 0o755, [0, 0], user, undefined, ""],
  ["open to search", 0o711, [0, 0], user, undefined, ""],
  ["the user's own", 0o700, [1000, 0], user, undefined, ""],
  ["open to a group of the user", 0o750, [0, 50], user, undefined, ""],
  ["the mapped user's own", 0o700, [101_000, 0], user, mapped, ""],
  ["closed, but not to root", 0o700, [5, 5], { ...user, uid: 0 }, undefined, ""],
])("a root that is %s", async (_, mode, [uid, gid], who, owner, expected) => {
  const root = join(dir, "rootfs");
  fs.chownSync(root, uid, gid);
  fs.chmodSync(root, mode);
  const problem = await closedRootProblem(dir, who, owner);
  if (expected === "") expect(problem).toBe("");
  else expect(problem).toContain(`has the mode ${expected}, so that user 1000 can open nothing`);
});

test("a root that is gone is not closed", async () => {
  expect(await closedRootProblem(join(dir, "none"), user)).toBe("");
});
