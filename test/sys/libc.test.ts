// libc's functions by FFI. Needs root, for the chroot.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

// The collector opens /proc/self/statm, which is not there in a chroot: its errno is ENOENT.
test.each([2, 3])(
  "a call that fails tells its own errno, with the garbage collected at every %dth slow allocation",
  (allocations) => {
    const root = mkdtempSync(join(tmpdir(), "isulad-libc-"));
    const program = join(import.meta.dirname, "failing_calls.ts");
    const env = { ...process.env, BUN_JSC_slowPathAllocsBetweenGCs: String(allocations) };
    const done = spawnSync(process.execPath, [program, root], { env, encoding: "utf8" });
    rmdirSync(root);
    expect({ status: done.status, wrong: done.stdout }).toEqual({ status: 0, wrong: "" });
  },
);
