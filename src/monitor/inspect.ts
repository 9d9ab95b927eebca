// Describes the monitor for the daemon's dump. Loaded when it is asked for.
import { callReports, lockReports } from "../base/activity_report.ts";
import { version } from "../base/build.ts";
import { processReport } from "../sys/process_report.ts";
import type { Containers } from "./containers.ts";
import type { Execs } from "./exec.ts";
import type { LogWorkers } from "./log_workers.ts";
import type { Inspection } from "./protocol.ts";

type Inspected = { containers: Containers; execs: Execs; workers: LogWorkers };

export async function inspect({ containers, execs, workers }: Inspected): Promise<Inspection> {
  return {
    version,
    process: await processReport(),
    calls: callReports(),
    locks: lockReports(),
    logThreads: workers.threads,
    containers: containers.running.map(({ id, pid, terminal }) => ({ id, pid, terminal })),
    starting: containers.starts.ids,
    execs: execs.open,
    unfetchedExits: containers.exits.all.map(({ id }) => id),
  };
}
