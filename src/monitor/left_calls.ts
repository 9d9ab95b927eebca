// Ends the runtime's calls that a killed monitor was waiting for, and the processes of its execs: their callers
// have had an error. What an exec left behind when it ended stays.
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { step } from "../base/failpoints.ts";
import type { Log } from "../base/log.ts";
import { processesWith } from "../sys/command_lines.ts";
import { killLeft } from "../sys/left_programs.ts";
import { startTime } from "../sys/process.ts";
import { markOf } from "../sys/process_mark.ts";
import { markOfExec } from "./oci_exec.ts";
import { runtimeLogs } from "./spawner.ts";

/** Limit for ending what is left: the containers wait for this monitor meanwhile. */
const killedMs = 1_000;

/** folder: the monitor's. Call before its records are read, by which a cut-off start is rolled back. */
export async function endLeftCalls(folder: string, log: Log): Promise<void> {
  if (!existsSync(join(folder, "containers"))) return; // no monitor has run since the boot
  const execs = new Set(readdirSync(folder).flatMap(markOfExec));
  const search = { folder, text: `\0--log\0${join(folder, runtimeLogs)}` };
  const found = await processesWith(search, (pid) =>
    log.warn("the command line of a process cannot be read, so it is taken for none of ours", {
      pid,
    }),
  );
  const calls = new Map(found.map(({ pid, started }) => [pid, started]));
  const programOf = (pid: number) => {
    if (execs.size > 0 && execs.has(markOf(pid) ?? 0)) return "exec";
    const started = calls.get(pid);
    return started !== undefined && startTime(pid) === started ? "runtime" : undefined;
  };
  await step("left-calls-kill", () => killLeft(programOf, { log, timeoutMs: killedMs }));
}
