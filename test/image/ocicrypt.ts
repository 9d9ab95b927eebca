// ocicrypt from the Go module proxy, as a program that encrypts layers and is their stream processor.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

/** Without Go the tests have only processors of their own. */
export const hasGo = spawnSync("go", ["version"]).status === 0;
if (!hasGo) console.error("skipped, there is no Go: what ocicrypt encrypts");

const source = join(import.meta.dirname, "ocicrypt");
const cache = join(import.meta.dirname, "../.cache");

/** The path of the program, built when a source is newer. */
export function buildOcicrypt(): string {
  const program = join(cache, "ocicrypt");
  const files = readdirSync(source).map((name) => join(source, name));
  const newest = Math.max(...files.map((file) => statSync(file).mtimeMs));
  if (existsSync(program) && statSync(program).mtimeMs > newest) return program;
  mkdirSync(cache, { recursive: true });
  const argv = ["build", "-mod=readonly", "-trimpath", "-o", program, "."];
  const env = { ...process.env, CGO_ENABLED: "0" };
  const run = spawnSync("go", argv, { cwd: source, env, encoding: "utf8" });
  if (run.status !== 0) throw new Error(`go build of ocicrypt: ${run.stderr}`);
  return program;
}
