// Tests the work of a monitor that starts among the containers of an earlier one: it grows with their number only
// (needs root).
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "bun:test";
import type { Work } from "./resume_many.ts";

const count = 300;

test("each container is looked at once, and the mount table is read once, until it changes", () => {
  const script = join(import.meta.dirname, "resume_many.ts");
  // In mounts of its own: other programs on the node would change the table meanwhile.
  const command = ["-m", process.execPath, script, String(count)];
  const { status, stdout, stderr } = spawnSync("unshare", command, { encoding: "utf8" });
  expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
  expect(JSON.parse(stdout)).toEqual({
    looks: { atStart: count, atChildsEnd: 0, atInterval: count },
    readings: { atStart: 1, afterMount: 2 },
    isOfNewMount: true,
  } satisfies Work);
});
