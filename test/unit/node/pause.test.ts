// Tests that the built-in pause program matches its source, reaps processes and exits on signals.
import { expect, test } from "bun:test";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pauseProgram } from "../../../src/node/pause_rootfs.ts";

const targets = [
  { arch: "x64", source: "pause_x86_64.s", triplet: "x86_64-linux-gnu" },
  { arch: "arm64", source: "pause_aarch64.s", triplet: "aarch64-linux-gnu" },
];

for (const { arch, source, triplet } of targets) {
  const own = arch === process.arch;
  const tool = (name: string) =>
    [`${triplet}-${name}`, ...(own ? [name] : [])].map((file) => Bun.which(file)).find(Boolean);
  const [as, objcopy] = [tool("as"), tool("objcopy")];
  const why = as && objcopy ? "" : ` (skipped: no binutils for ${triplet} here)`;

  test.skipIf(why !== "")(`${source} assembles to the program that is built in${why}`, () => {
    const dir = mkdtempSync(join(tmpdir(), "isulad-pause-"));
    try {
      const [object, program] = [join(dir, "pause.o"), join(dir, "pause")];
      execFileSync(as!, ["-o", object, join(import.meta.dirname, "../../../src/node", source)]);
      execFileSync(objcopy!, ["-O", "binary", "-j", ".text", object, program]);
      const made = readFileSync(program).toString("base64");
      expect(Buffer.from(pauseProgram(arch)).toString("base64")).toBe(made);
    } finally {
      rmSync(dir, { recursive: true });
    }
  });
}

test.each(["SIGINT", "SIGTERM"] as const)("it ends on %s with exit code 0", async (signal) => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-pause-"));
  const program = join(dir, "pause");
  writeFileSync(program, pauseProgram(process.arch));
  chmodSync(program, 0o555);
  const child = spawn(program, { stdio: "ignore" });
  const ended = new Promise((resolve) => child.once("exit", (code) => resolve(code)));
  // It sleeps only where it waits for them; before that a signal would end it as it ends any program.
  while (!/^State:\tS/m.test(readFileSync(`/proc/${child.pid}/status`, "utf8"))) await Bun.sleep(5);
  child.kill("SIGCHLD");
  child.kill("SIGSTOP");
  child.kill("SIGCONT");
  child.kill(signal);
  expect(await ended).toBe(0);
  rmSync(dir, { recursive: true });
});

test("an architecture without a pause program names the key to set", () => {
  expect(() => pauseProgram("riscv64")).toThrow("pod-sandbox-image");
});
