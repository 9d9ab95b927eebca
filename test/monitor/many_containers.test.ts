// Tests the work of a monitor that starts among the containers of an earlier one: it grows with their number only
// (needs root).
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "bun:test";
import type { Work } from "./resume_many.ts";

const count = 300;

test("each container is looked at once, and the mount table is not read for each", () => {
  const script = join(import.meta.dirname, "resume_many.ts");
  // In mounts of its own: those that other programs make are not added to its table. It still changes when they remove
  // a folder on which one of the copied mounts lies, because the kernel then detaches the copy.
  const command = ["-m", process.execPath, script, String(count)];
  const { status, stdout, stderr } = spawnSync("unshare", command, { encoding: "utf8" });
  expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
  const { looks, readings, isOfNewMount }: Work = JSON.parse(stdout);
  expect({ looks, isOfNewMount }).toEqual({
    looks: { atStart: count, atChildsEnd: 0, atInterval: count },
    isOfNewMount: true,
  });
  expect(readings.atStart).toBeWithin(1, count / 10);
  expect(readings.afterMount).toBeGreaterThan(readings.atStart);
});
