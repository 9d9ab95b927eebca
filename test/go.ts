// Builds test programs from Go modules.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, statSync } from "node:fs";
import { basename, join } from "node:path";

export const hasGo = spawnSync("go", ["version"]).status === 0;

const cache = join(import.meta.dirname, ".cache");

/** Returns the path of a folder's program, which it builds when a source is newer. */
export function buildGo(source: string): string {
  const program = join(cache, basename(source));
  const files = readdirSync(source).map((name) => join(source, name));
  const newest = Math.max(...files.map((file) => statSync(file).mtimeMs));
  if (existsSync(program) && statSync(program).mtimeMs > newest) return program;
  mkdirSync(cache, { recursive: true });
  // One package at a time, to leave memory for other tests: grpc is large.
  const argv = ["build", "-p", "1", "-mod=readonly", "-trimpath", "-o", program, "."];
  const env = { ...process.env, CGO_ENABLED: "0" };
  const run = spawnSync("go", argv, { cwd: source, env, encoding: "utf8" });
  if (run.status !== 0) throw new Error(`go build of ${source}: ${run.stderr}`);
  return program;
}
