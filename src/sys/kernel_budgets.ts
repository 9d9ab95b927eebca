// Reads the kernel's budgets that all pods of a node share: how much of each is used, and which sysctl sets it.
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** sysctl: the setting that raises it. */
export type KernelBudget = { budget: string; used: number; limit: number; sysctl: string };

/** Returns the budgets that this kernel tells of. root: prefix of every path, for tests. */
export function kernelBudgets(root = ""): KernelBudget[] {
  const read = (path: string) => textOf(join(root, "/proc", path));
  const number = (path: string) => firstNumber(read(`sys/${path.replaceAll(".", "/")}`));
  const tasks = firstNumber(read("loadavg").split(" ")[3]?.split("/")[1]);
  const [keys, keysMax] = rootKeys(read("key-users"));
  const pid = number("kernel.pid_max");
  const threads = number("kernel.threads-max");
  const isPid = (pid ?? Infinity) <= (threads ?? Infinity);
  const tracked = number("net.netfilter.nf_conntrack_count");
  const all = [
    budget("tasks", tasks, isPid ? pid : threads, isPid ? "kernel.pid_max" : "kernel.threads-max"),
    budget("files", firstNumber(read("sys/fs/file-nr")), number("fs.file-max"), "fs.file-max"),
    budget("keys", keys, keysMax, "kernel.keys.root_maxkeys"),
    budget(
      "connections",
      tracked,
      number("net.netfilter.nf_conntrack_max"),
      "net.netfilter.nf_conntrack_max",
    ),
  ];
  return all.filter((one) => one !== undefined);
}

function budget(
  name: string,
  used: number | undefined,
  limit: number | undefined,
  sysctl: string,
): KernelBudget | undefined {
  if (used === undefined || limit === undefined) return undefined;
  return { budget: name, used, limit, sysctl };
}

/** Keys that count against the quota of uid 0, to which runc adds one for each container. keys(7): key-users. */
function rootKeys(text: string): (number | undefined)[] {
  const words = text.split("\n").map((line) => line.trim().split(" ").filter(Boolean));
  const quota = words.find(([user]) => user === "0:")?.[3] ?? "";
  return quota.split("/").map(firstNumber);
}

function firstNumber(text: string | undefined): number | undefined {
  const found = /\d+/.exec(text ?? "");
  return found === null ? undefined : Number(found[0]);
}

/** "" where the kernel has no such file. */
function textOf(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
