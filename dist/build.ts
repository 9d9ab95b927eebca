// Builds the executable: `bun dist/build.ts [TARGET…|all]`; without a target, for this machine. The
// executable finds a worker by its path relative to --root, so neither may change.
import { execFileSync, spawnSync } from "node:child_process";
import { readFileSync, renameSync, rmSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const entries = [
  "src/main.ts",
  "src/monitor_log/log_worker.ts",
  "src/sys/poller_worker.ts",
  "src/sys/unmount_worker.ts",
];
/** Bun's name of a target → file name. */
export const targets: Record<string, string> = {
  "linux-x64": "isulad-ts-linux-x64",
  "linux-x64-baseline": "isulad-ts-linux-x64-baseline",
  "linux-x64-musl": "isulad-ts-linux-x64-musl",
  "linux-arm64": "isulad-ts-linux-arm64",
  "linux-arm64-musl": "isulad-ts-linux-arm64-musl",
};

export function commit(): string {
  const git = (...words: string[]) =>
    execFileSync("git", words, {
      cwd: root,
      encoding: "utf8",
      stdio: ["ignore", "pipe", "ignore"],
    });
  try {
    const id = git("rev-parse", "--short=12", "HEAD").trim();
    const dirty = git("status", "--porcelain", "--untracked-files=no");
    return dirty.trim() === "" ? id : `${id}+changes`;
  } catch {
    return "unknown";
  }
}

export function packageVersion(): string {
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
    version: string;
  };
  return version;
}

/** Builds dist/FILE. target: undefined for this machine. */
export function build(target: string | undefined, file: string, version = packageVersion()): void {
  // Built next to it and renamed, so that a daemon which runs the old file is unaffected.
  const made = join(root, "dist", `${file}.${process.pid}`);
  const argv = ["build", "--compile", "--minify", "--bytecode", "--format=esm", "--root=."];
  // Otherwise each process loads all of it: helpers start 10 ms later, the monitor takes 5 MiB more.
  argv.push("--splitting");
  argv.push("--no-compile-autoload-dotenv", "--no-compile-autoload-bunfig");
  argv.push("--define", `ISULAD_BUILD=${JSON.stringify({ version, commit: commit() })}`);
  if (target !== undefined) argv.push(`--target=bun-${target}`);
  argv.push(...entries, "--outfile", made);
  const done = spawnSync(process.execPath, argv, { cwd: root, encoding: "utf8" });
  if (done.status !== 0) {
    rmSync(made, { force: true });
    throw new Error(`bun build of ${file} failed:\n${done.stdout}${done.stderr}`);
  }
  renameSync(made, join(root, "dist", file));
  const mib = (statSync(join(root, "dist", file)).size / 2 ** 20).toFixed(0);
  console.log(`dist/${file}: ${mib} MiB`);
}

/** @throws for a name that is no target. */
export function fileOf(target: string): string {
  const file = targets[target];
  if (file !== undefined) return file;
  throw new Error(`unknown target ${target}: one of ${Object.keys(targets).join(", ")} or all`);
}

if (import.meta.main) {
  const asked = process.argv.slice(2);
  const chosen = asked.includes("all") ? Object.keys(targets) : asked;
  if (chosen.length === 0) build(undefined, "isulad-ts");
  for (const target of chosen) build(target, fileOf(target));
}
