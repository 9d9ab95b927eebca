// Tests that failures for lack of space name the disk that is full, and no others do.
import { expect, test } from "bun:test";
import { CriError, codeOf, messageOf } from "../../../src/base/errors.ts";
import { withFullDisk } from "../../../src/layer/disk_space.ts";

const folders = { graph: "/var/lib/isulad", state: "/var/run/isulad" };
const named = (error: unknown, full: string) =>
  withFullDisk(error, folders, (folder) => Promise.resolve(folder === full));
const write = new CriError(
  "RESOURCE_EXHAUSTED",
  "cannot write a.json: ENOSPC: no space, mkdir 'a'",
);

test("a failure on a full disk of graph names it, and what frees it", async () => {
  const error = await named(write, folders.graph);
  expect(codeOf(error)).toBe("RESOURCE_EXHAUSTED");
  expect(messageOf(error)).toBe(
    "no space left on the disk of graph (/var/lib/isulad): cannot write a.json: ENOSPC: no space, mkdir 'a'; isulad-ts images prune removes unused images",
  );
});

test("state may be what is full, and a runtime may be who says so", async () => {
  const error = await named(new Error("runc: write x: No space left on device"), folders.state);
  expect(codeOf(error)).toBe("RESOURCE_EXHAUSTED");
  expect(messageOf(error)).toStartWith("no space left on the disk of state (/var/run/isulad): ");
});

test("an error stays as it is on a disk with room, with another cause, or with the disk named", async () => {
  const [other, done] = [new Error("EIO"), new Error("ENOSPC: no space left on the disk of graph")];
  expect(await named(write, "")).toBe(write);
  expect(await named(other, folders.graph)).toBe(other);
  expect(await named(done, folders.graph)).toBe(done);
  expect(await withFullDisk(write, { graph: "/proc", state: "/nosuch" })).toBe(write);
});
