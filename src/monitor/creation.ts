// Creates a container, which then waits for its start. The record comes first, so that the next monitor rolls an
// interrupted start back (Containers.resume).
import { nowNs } from "../base/clock.ts";
import { CriError } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { startTime } from "../sys/process.ts";
import { pin, type End } from "./init_process.ts";
import type { LogWorkers } from "./log_workers.ts";
import type { RunRecord, StartRequest } from "./record_schemas.ts";
import type { RecordFolder } from "./records.ts";
import type { Runtimes } from "./runtimes.ts";
import type { Spawner } from "./spawner.ts";
import { openStdio, type Stdio } from "./stdio.ts";

export type Creation = {
  record: RunRecord;
  stdio: Stdio;
  /** Removes the container with all that belongs to it. */
  undo: AsyncDisposableStack;
};

export async function createContainer(
  request: StartRequest,
  parts: {
    /** The monitor's. */
    folder: string;
    records: RecordFolder;
    workers: LogWorkers;
    spawner: Spawner;
    runtimes: Runtimes;
    /** Ends the runtime's call before its timeout. */
    signal: AbortSignal;
    /** Completes the container's log. */
    endLog: () => Promise<unknown>;
    /** Removes its records. */
    forget: () => Promise<void>;
  },
): Promise<Creation> {
  const { folder, records, workers, spawner, runtimes, signal } = parts;
  using _ = spawner.starting();
  const intent = { pid: 0, pidStartTime: "", startedAtNs: "0", started: false };
  const record: RunRecord = { version: 1, ...request, ...intent };
  await using undo = new AsyncDisposableStack();
  undo.defer(parts.forget);
  await step("monitor-record", () => records.writeRun(record));
  const stdio = await step("monitor-stdio", async () => {
    const opened = await openStdio(request, { workers, folder });
    undo.defer(async () => {
      opened.exited();
      await parts.endLog();
      opened.close();
    });
    return opened;
  });
  undo.defer(() => runtimes.deleteIfPossible(request));
  record.pid = await step("runtime-create", () => runtimes.create(request, stdio, signal));
  record.pidStartTime = startTime(record.pid) ?? "";
  record.startedAtNs = String(nowNs());
  records.writeRun(record);
  if (request.runtime.shim === undefined) pin(record.pid, records.pinOf(request.id));
  return { record, stdio, undo: undo.move() };
}

/** end: that of the container's init, before its start. @throws CriError UNKNOWN if there is one. */
export function refuseEnded({ pid }: RunRecord, end: End | undefined): void {
  if (end === undefined) return;
  const code = end.known ? `with exit code ${end.exitCode}` : "for an unknown reason";
  throw new CriError("UNKNOWN", `its init, process ${pid}, has ended before the start ${code}`);
}
