// Changes a daemon's monitor to another build in place, as a daemon of another build does.
import { join } from "node:path";
import { createLog } from "../../src/base/log.ts";
import { MonitorClient } from "../../src/monitor_client/client.ts";
import type { Daemon } from "../harness.ts";

/** Asks the monitor to become the program at `program`; returns when it has answered or become it. */
export async function upgradeTo(daemon: Daemon, program: string[]): Promise<void> {
  await using client = new MonitorClient({
    state: join(daemon.dir, "state"),
    program,
    log: createLog({ level: "error", format: "text" }),
    onExit: () => {},
    onHello: () => {},
  });
  await client.connect();
}
