// Resolves parts of the configuration that depend on the host or on several keys.
import type { HostInfo } from "./config_host.ts";
import { jsonText } from "./json.ts";
import { clip } from "./text.ts";

export type Resolution = {
  host: HostInfo;
  /** Returns where a key is given, or a part of its value. */
  place: (key: string, ...steps: string[]) => string;
  problems: string[];
  warnings: string[];
};

/** Bounds a wrong value in a message. */
const shownBytesMax = 60;

export function clipped(value: unknown): string {
  return value === undefined ? "undefined" : clip(jsonText(value), shownBytesMax);
}

/** at: the key, and the path inside its value. effect: what a missing program causes. */
export type ProgramUse = {
  at: readonly [key: string, ...steps: string[]];
  path: string;
  effect: string;
};

/** Returns a program's absolute path; warns of the effect if it is not installed. */
export function programPath(use: ProgramUse, { host, place, warnings }: Resolution): string {
  const { at, path, effect } = use;
  const found = path.startsWith("/") ? path : host.findExecutable(path);
  if (found === undefined || !host.isExecutable(found)) {
    warnings.push(`${place(...at)}: "${at.join(".")}": ${path} does not exist: ${effect}`);
  }
  return found ?? path;
}
