// Tests libc's functions by FFI. Needs root, for the chroot.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { libc, openLibc, required } from "../../src/sys/libc.ts";
import { deviceNumbers, mknod } from "../../src/sys/path.ts";

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

/** Symbol → the minor of the oldest glibc 2.x that has it so, of a libc.so.6. */
function versions(objdump: string, file: string): Map<string, number> {
  const { stdout } = spawnSync(objdump, ["-T", file], { encoding: "utf8" });
  const found = stdout.matchAll(/ GLIBC_2\.(\d+)(?:\.\d+)? +(\w+)$/gm);
  return new Map([...found].map(([, minor, name]) => [name!, Number(minor)]));
}

const glibcs = [
  ["objdump", `/lib/${process.arch === "arm64" ? "aarch64" : "x86_64"}-linux-gnu/libc.so.6`],
  ["aarch64-linux-gnu-objdump", "/usr/aarch64-linux-gnu/lib/libc.so.6"],
].filter(([, file]) => existsSync(file!)) as [string, string][];

for (const [objdump, file] of glibcs) {
  const isMissing = Bun.which(objdump) === null;
  const why = isMissing ? ` (skipped: no ${objdump} here)` : "";
  test.skipIf(isMissing)(`glibc 2.17 has what ${objdump} finds required of ${file}${why}`, () => {
    const known = versions(objdump, file);
    const newerOnes = required.filter((name) => !(known.get(name)! <= 17));
    expect(newerOnes).toEqual([]);
    expect(known.get("mknod")).toBe(33); // the test can tell
    expect(known.get("__xmknod")).toBeLessThanOrEqual(17);
  });
}

test("openLibc names the functions that a libc does not have, and the libc", () => {
  const open = (file: string, names: readonly string[]) => {
    if (file !== "libc.so.6" || names.includes("splice")) throw new Error("dlopen");
    return names;
  };
  const files = ["libc.so.6", "/lib/ld-musl-x86_64.so.1"];
  expect(openLibc(open, ["read", "write"], files)).toEqual({
    library: ["read", "write"],
    file: "libc.so.6",
  });
  expect(() => openLibc(open, ["read", "splice", "write"], files)).toThrow(
    "the libc libc.so.6 does not have splice: isulad-ts needs glibc 2.17 or later, or musl",
  );
  expect(() => openLibc(open, ["read"], ["none"])).toThrow("cannot load a libc");
});

test("mknod makes the same device where the libc has only __xmknod", () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-libc-"));
  using _ = { [Symbol.dispose]: () => rmSync(folder, { recursive: true }) };
  const { call } = libc();
  const numbers = (path: string) => deviceNumbers(statSync(path, { bigint: true }).rdev);
  mknod(join(folder, "new"), 0o020600, 259, 1_000_001);
  const native = call.mknod!;
  delete call.mknod;
  try {
    mknod(join(folder, "old"), 0o020600, 259, 1_000_001);
  } finally {
    call.mknod = native;
  }
  expect(numbers(join(folder, "new"))).toEqual({ major: 259, minor: 1_000_001 });
  expect(numbers(join(folder, "old"))).toEqual({ major: 259, minor: 1_000_001 });
});
