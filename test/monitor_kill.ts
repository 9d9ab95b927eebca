// Kills a daemon's monitor, and waits until another one serves.
import process from "node:process";
import { until } from "./expect.ts";
import type { Daemon } from "./harness.ts";

export async function replaceMonitor(daemon: Daemon): Promise<void> {
  const old = daemon.monitors();
  for (const pid of old) process.kill(pid, "SIGKILL");
  await until("another monitor serves", async () => {
    const { json } = await daemon.client.Dump({});
    const { monitor } = JSON.parse(json) as { monitor?: { process?: { pid: number } } };
    const pid = monitor?.process?.pid;
    return pid !== undefined && !old.includes(pid);
  });
}
