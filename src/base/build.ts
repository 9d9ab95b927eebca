// Identifies the executable: version and commit from dist/build.ts (--define), absent when run from source.
import { statSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";

declare const ISULAD_BUILD: { version: string; commit: string } | undefined;

/** Version and commit of this executable; undefined when it runs from source. */
export const build = typeof ISULAD_BUILD === "undefined" ? undefined : ISULAD_BUILD;

/** The version for callers: semantic, as CRI's VersionResponse requires. */
export const version = build?.version ?? "0.1.0-source";

/** The version with the commit as semantic versioning's build metadata, which has no second "+". */
export const fullVersion =
  build === undefined ? version : `${version}+${build.commit.replace("+", ".")}`;

/** Identifies this process's executable, also after its file was replaced; equal for processes of one build. */
export function executableId(): string {
  const { size, mtimeMs } = statSync("/proc/self/exe");
  return `${version} ${build?.commit ?? "source"} ${size} ${Math.trunc(mtimeMs)}`;
}

/** Returns the program and arguments that start the installed build: after an upgrade, the new one. */
export function ownProgram(): string[] {
  if (build !== undefined) return [process.execPath];
  const source = join(import.meta.dirname, "../main.ts");
  const denoArgs = "Deno" in globalThis ? ["run", "-A"] : [];
  return [process.execPath, ...denoArgs, source];
}

/**
 * Returns the program and arguments that start this process's own build, also after its file was replaced or
 * deleted; argv0: for spawn, so that ps(1) shows no path in /proc.
 */
export function runningProgram(): { argv: string[]; argv0: string } {
  const { execPath: argv0, pid } = process;
  // Not /proc/self: that would be the program that starts it, such as nsenter(1).
  return { argv: build === undefined ? ownProgram() : [`/proc/${pid}/exe`], argv0 };
}
