// Writes the daemon's pid to its pidfile, and removes it at the end.
import { readFileSync, rmSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { errnoOf, messageOf } from "./base/errors.ts";
import type { Log } from "./base/log.ts";

/** Best effort; the stack removes the file. */
export async function writePidfile(
  path: string,
  { stack, log }: { stack: AsyncDisposableStack; log: Log },
): Promise<void> {
  try {
    await writeFile(path, String(process.pid), { mode: 0o644 }); // strict readers refuse a newline
    stack.defer(() => removePidfile(path));
  } catch (error) {
    log.warn("the pidfile was not written", { path, error: messageOf(error) });
  }
}

/** Keeps the file of another daemon that was started with the same path. */
function removePidfile(path: string): void {
  try {
    if (readFileSync(path, "utf8").trim() === String(process.pid)) rmSync(path, { force: true });
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw error;
  }
}
