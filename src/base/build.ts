// What the build put into the executable (dist/build.ts, --define); from source there is nothing.
import { statSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";

declare const ISULAD_BUILD: { version: string; commit: string } | undefined;

/** Version and commit of this executable; undefined when it runs from source. */
export const build = typeof ISULAD_BUILD === "undefined" ? undefined : ISULAD_BUILD;

/** What callers are told of the version: semantic, as CRI's VersionResponse wants it. */
export const version = build?.version ?? "0.1.0-source";

/**
 * Names the executable that this process runs, also after its file was replaced: two processes of one
 * build have the same.
 */
export function executableId(): string {
  const { size, mtimeMs } = statSync("/proc/self/exe");
  return `${version} ${build?.commit ?? "source"} ${size} ${Math.trunc(mtimeMs)}`;
}

/** Program and arguments that start this same executable again: the monitor and the helpers run in it. */
export function ownProgram(): string[] {
  if (build !== undefined) return [process.execPath];
  const source = join(import.meta.dirname, "../main.ts");
  return "Deno" in globalThis
    ? [process.execPath, "run", "-A", source]
    : [process.execPath, source];
}
