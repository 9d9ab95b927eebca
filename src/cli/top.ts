// Implements isulad-ts top: the process table of a container, read from this host's /proc.
import { readdir } from "node:fs/promises";
import { defineCommand } from "citty";
import { readTextIfExists } from "../sys/file.ts";
import { uptimeMs } from "../sys/uptime.ts";
import { containerOperand, hostArg, withClient } from "./daemon_command.ts";
import { processOf } from "./kill_wait.ts";
import { screenTable } from "./format.ts";
import { clockText, size } from "./text.ts";

const ticksPerSecond = 100; // USER_HZ, the same on all architectures that Linux has left

export const top = defineCommand({
  meta: { description: "Show the processes of a container" },
  args: { container: containerOperand, ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const { id } = await find.container(args.container);
      const own = await readTextIfExists(`/proc/${await processOf(client, id)}/cgroup`);
      const rows: string[][] = [];
      for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
        const cgroups = await readTextIfExists(`/proc/${pid}/cgroup`).catch(() => undefined);
        if (cgroups === undefined || !isWithin(cgroups, own ?? "")) continue;
        const row = await readRow(pid).catch(() => undefined); // it has just ended
        if (row !== undefined) rows.push(row);
      }
      const header = ["USER", "PID", "HOST PID", "STATE", "MEM", "ELAPSED", "TIME", "COMMAND"];
      process.stdout.write(screenTable([header, ...rows], [], false));
    }),
});

/** True if a process is in the cgroups of the container's first process, or below them. */
export function isWithin(cgroups: string, own: string): boolean {
  const lines = own.split("\n").filter((line) => line !== "" && !line.endsWith(":/"));
  return lines.length > 0 && lines.every((line) => `\n${cgroups}`.includes(`\n${line}`));
}

async function readRow(pid: string): Promise<string[] | undefined> {
  const [stat, status, cmdline] = await Promise.all(
    ["stat", "status", "cmdline"].map((name) => readTextIfExists(`/proc/${pid}/${name}`)),
  );
  if (stat === undefined || status === undefined || cmdline === undefined) return undefined;
  return processRow(pid, { stat, status, cmdline }, uptimeMs());
}

/** Makes a row of the table from the files of /proc/PID (proc(5)). */
export function processRow(
  pid: string,
  { stat, status, cmdline }: { stat: string; status: string; cmdline: string },
  nowMs: number,
): string[] {
  const field = (name: string) => new RegExp(`^${name}:\\s*(.*)$`, "m").exec(status)?.[1] ?? "";
  // The name in parentheses may have spaces and parentheses: numbers begin after the last one.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const [state = "", userTicks, systemTicks, startTicks] = [0, 11, 12, 19].map((i) => fields[i]);
  const seconds = (Number(userTicks) + Number(systemTicks)) / ticksPerSecond;
  const elapsed = nowMs / 1000 - Number(startTicks) / ticksPerSecond;
  const command = cmdline.replaceAll("\0", " ").trim();
  return [
    field("Uid").split("\t")[0] ?? "",
    field("NSpid").split("\t").at(-1) ?? "",
    pid,
    state,
    size(BigInt(/^\d+/.exec(field("VmRSS"))?.[0] ?? 0) * 1024n),
    clockText(elapsed),
    clockText(seconds),
    command === "" ? `[${field("Name")}]` : command,
  ];
}
