// Builds this source a second time for test/upgrade.test.ts, with another commit and optional faults. As a
// command it builds the one for guests, which lack the npm packages of their platform and the time to build.
// Afterwards `test/run --guest test/upgrade.test.ts` upgrades there.
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

const root = join(import.meta.dirname, "..");
export const nextForGuests = join(import.meta.dirname, ".cache/isulad-ts-next");

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

/** Builds outside of any repository, so that its commit differs. */
export function buildNext(file: string): void {
  const copy = mkdtempSync(join(tmpdir(), "isulad-next-"));
  try {
    for (const name of ["src", "proto", "dist/build.ts", "package.json", "tsconfig.json"]) {
      cpSync(join(root, name), join(copy, name), { recursive: true });
    }
    symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
    const main = join(copy, "src/main.ts");
    writeFileSync(main, `${faults}${readFileSync(main, "utf8")}`);
    const done = spawnSync(process.execPath, ["dist/build.ts"], { cwd: copy, encoding: "utf8" });
    if (done.status !== 0) throw new Error(`the second build failed: ${done.stderr}`);
    mkdirSync(dirname(file), { recursive: true });
    cpSync(join(copy, "dist/isulad-ts"), file);
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}

if (import.meta.main) buildNext(nextForGuests);
