// Reads files to which other processes append lines.
import { existsSync, readFileSync } from "node:fs";

/**
 * Returns the lines that end with a newline, without it and without empty ones; none if the file does not exist.
 * The kernel may show a part of a write that is still under way.
 */
export function wholeLines(path: string): string[] {
  if (!existsSync(path)) return [];
  return readFileSync(path, "utf8").split("\n").slice(0, -1).filter(Boolean);
}
