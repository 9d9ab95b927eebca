// Builds this source a second time for test/upgrade.test.ts, with another commit and optional faults. As a
// command, with a target or for this machine, it builds the one for guests, which lack the npm packages of their
// platform and the time to build. Afterwards `test/run --guest test/upgrade.test.ts` upgrades there.
import { spawnSync } from "node:child_process";
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import process from "node:process";
import { fileOf } from "../dist/build.ts";

const root = join(import.meta.dirname, "..");
const cache = join(import.meta.dirname, ".cache");
const name = "isulad-ts-next";
export const nextForGuests = join(cache, name);

/** The fault of the second build, read from a file next to it; without that file it is a good build. */
const faults = `
import { readFileSync as read, rmSync as rm } from "node:fs";
const fault = (() => {
  try {
    return read(process.execPath + ".fault", "utf8");
  } catch {
    return "";
  }
})();
if (process.argv[2] === "monitor") {
  const checks = process.argv.includes("--check-state");
  if (fault === "refuses" && checks) {
    process.stderr.write("this build cannot read that\\n");
    process.exit(3);
  }
  if (fault === "crashes" && checks) process.kill(process.pid, "SIGSEGV");
  if (fault === "ends once" && !checks) {
    rm(process.execPath + ".fault");
    process.exit(9);
  }
}
`;

/** Builds outside of any repository, so that its commit differs. target: undefined for this machine. */
export function buildNext(file: string, target?: string): void {
  const copy = mkdtempSync(join(tmpdir(), "isulad-next-"));
  try {
    for (const source of ["src", "proto", "dist/build.ts", "package.json", "tsconfig.json"]) {
      cpSync(join(root, source), join(copy, source), { recursive: true });
    }
    symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
    const main = join(copy, "src/main.ts");
    writeFileSync(main, `${faults}${readFileSync(main, "utf8")}`);
    const argv = ["dist/build.ts", ...(target === undefined ? [] : [target])];
    const done = spawnSync(process.execPath, argv, { cwd: copy, encoding: "utf8" });
    if (done.status !== 0) throw new Error(`the second build failed: ${done.stderr}`);
    mkdirSync(dirname(file), { recursive: true });
    cpSync(join(copy, "dist", target === undefined ? "isulad-ts" : fileOf(target)), file);
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}

if (import.meta.main) {
  const target = process.argv[2];
  buildNext(target === undefined ? nextForGuests : join(cache, target, name), target);
}
