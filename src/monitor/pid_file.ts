// Reads the pid files of OCI runtimes.
import { existsSync, readFileSync } from "node:fs";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { lineageOf } from "../sys/process.ts";

/**
 * Returns the pid that a runtime wrote before it ended, which left the process to this one, a subreaper.
 * undefined: it wrote none, or that of another process, which no signal may hit.
 */
export function childIn(pidFile: string): number | undefined {
  return childOf(textOf(pidFile));
}

/** Like childIn(), for a runtime that reported success. @throws CriError INTERNAL when there is no such child. */
export function startedChild(pidFile: string): number {
  const text = textOf(pidFile);
  const pid = childOf(text);
  if (pid !== undefined) return pid;
  const has =
    text === undefined ? "it wrote no pid" : `the pid that it wrote, ${quoted(text)}, is none`;
  throw new CriError("INTERNAL", `the runtime reported success, but started no process: ${has}`);
}

function textOf(pidFile: string): string | undefined {
  return existsSync(pidFile) ? readFileSync(pidFile, "utf8") : undefined;
}

function childOf(text = ""): number | undefined {
  const pid = /^\d+$/.test(text) ? Number(text) : 0;
  return lineageOf(pid)?.parent === process.pid ? pid : undefined;
}
