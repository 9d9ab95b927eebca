// Implements isulad-ts top: the process table of a container, read from this host's /proc.
import { defineCommand } from "citty";
import { kernelFigure, readTextIfExists } from "../sys/file.ts";
import { processIds, processTimes } from "../sys/process.ts";
import { uptimeMs } from "../sys/uptime.ts";
import { containerOperand, hostArg, withClient } from "./daemon_command.ts";
import { processOf } from "./kill_wait.ts";
import { screenTable } from "./format.ts";
import { clockText, size } from "./text.ts";

export const top = defineCommand({
  meta: { description: "Show the processes of a container" },
  args: { container: containerOperand, ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const { id } = await find.container(args.container);
      const own = await readTextIfExists(`/proc/${await processOf(client, id)}/cgroup`);
      const rows: string[][] = [];
      for (const pid of processIds()) {
        const cgroups = await readTextIfExists(`/proc/${pid}/cgroup`).catch(() => undefined);
        if (cgroups === undefined || !isWithin(cgroups, own ?? "")) continue;
        const row = await readRow(pid).catch(() => undefined); // it has just ended
        if (row !== undefined) rows.push(row);
      }
      const header = ["USER", "PID", "HOST PID", "STATE", "MEM", "ELAPSED", "TIME", "COMMAND"];
      process.stdout.write(
        screenTable([header, ...rows], { narrow: ["USER", "STATE", "ELAPSED", "HOST PID"] }, false),
      );
    }),
});

/** True if a process is in the cgroups of the container's first process, or below them. */
export function isWithin(cgroups: string, own: string): boolean {
  const lines = own.split("\n").filter((line) => line !== "" && !line.endsWith(":/"));
  return lines.length > 0 && lines.every((line) => `\n${cgroups}`.includes(`\n${line}`));
}

async function readRow(pid: number): Promise<string[] | undefined> {
  const [stat, status, cmdline] = await Promise.all(
    ["stat", "status", "cmdline"].map((name) => readTextIfExists(`/proc/${pid}/${name}`)),
  );
  if (stat === undefined || status === undefined || cmdline === undefined) return undefined;
  return processRow(pid, { stat, status, cmdline }, uptimeMs());
}

/** Makes a row of the table from the files of /proc/PID (proc(5)). */
export function processRow(
  pid: number,
  { stat, status, cmdline }: { stat: string; status: string; cmdline: string },
  nowMs: number,
): string[] {
  const field = (name: string) => new RegExp(`^${name}:\\s*(.*)$`, "m").exec(status)?.[1] ?? "";
  const { state, cpuMs, startedMs } = processTimes(stat);
  const command = cmdline.replaceAll("\0", " ").trim();
  return [
    field("Uid").split("\t")[0] ?? "",
    field("NSpid").split("\t").at(-1) ?? "",
    String(pid),
    state,
    size(BigInt(kernelFigure(status, "VmRSS") ?? 0) * 1024n),
    clockText((nowMs - startedMs) / 1000),
    clockText(cpuMs / 1000),
    command === "" ? `[${field("Name")}]` : command,
  ];
}
