// Ends the runtime's calls that a killed monitor was waiting for, and the processes of its execs: their callers
// have had an error. What an exec left behind when it ended stays.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { step } from "../base/failpoints.ts";
import type { Log } from "../base/log.ts";
import { killLeft } from "../sys/left_programs.ts";
import { argumentsIn } from "../sys/process.ts";
import { markOf } from "../sys/process_mark.ts";
import { markOfExec } from "./oci_exec.ts";
import { runtimeLogs } from "./spawner.ts";

/** Limit for ending what is left: the containers wait for this monitor meanwhile. */
const killedMs = 1_000;

/** folder: the monitor's. Call before its records are read, by which a cut-off start is rolled back. */
export async function endLeftCalls(folder: string, log: Log): Promise<void> {
  const execs = new Set(readdirSync(folder).flatMap(markOfExec));
  const isCall = argumentsIn(folder, `\0--log\0${join(folder, runtimeLogs)}`);
  const programOf = (pid: number) => {
    if (execs.size > 0 && execs.has(markOf(pid) ?? 0)) return "exec";
    return isCall(pid) ? "runtime" : undefined;
  };
  await step("left-calls-kill", () => killLeft(programOf, { log, timeoutMs: killedMs }));
}
