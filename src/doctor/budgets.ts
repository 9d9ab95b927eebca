// Checks the kernel's budgets that all pods of a node share: those of the node, and those of its root user.
import { readdirSync, readlinkSync, statSync } from "node:fs";
import { join } from "node:path";
import { type KernelBudget, kernelBudgets } from "../sys/kernel_budgets.ts";
import { usualPipeBytes } from "../sys/large_pipes.ts";
import { textAt, type Finding, type Node } from "./node.ts";

const warnShare = 0.8;
const failShare = 0.95;
const pageBytes = 4_096;

export function checkBudgets(node: Node): Finding[] {
  const check = "kernel budgets";
  const budgets = [...kernelBudgets(node.root), ...rootBudgets(node)];
  const tight = budgets.filter(({ used, limit }) => used >= warnShare * limit);
  if (tight.length === 0) {
    const most = budgets.toSorted((a, b) => b.used / b.limit - a.used / a.limit)[0];
    const detail = most === undefined ? "none can be read" : `the tightest: ${textOf(most)}`;
    return [{ check, state: "ok", detail }];
  }
  return tight.map((one) => {
    const isFull = one.used >= failShare * one.limit;
    const mend = `find who uses them, or sysctl -w ${one.sysctl}=${2 * one.limit} (and in /etc/sysctl.d)`;
    return { check, state: isFull ? "fail" : "warn", detail: textOf(one), mend };
  });
}

function textOf({ budget, used, limit, sysctl }: KernelBudget): string {
  return `${used} of ${limit} ${budget} (${sysctl})`;
}

/** The budgets of uid 0, which is also the root of containers without a user namespace. */
function rootBudgets(node: Node): KernelBudget[] {
  const { inotify, pipes } = descriptorsOfRoot(node);
  const budgets: [string, number, string][] = [
    ["inotify instances of root", inotify, "fs.inotify.max_user_instances"],
    // Most pipes have the usual size.
    [
      "pages of root's pipes, about",
      pipes * (usualPipeBytes / pageBytes),
      "fs.pipe-user-pages-soft",
    ],
  ];
  return budgets.flatMap(([budget, used, sysctl]) => {
    const limit = Number(textAt(node, `/proc/sys/${sysctl.replaceAll(".", "/")}`) ?? 0);
    return limit > 0 ? [{ budget, used, limit, sysctl }] : [];
  });
}

/** Looks at links only: a descriptor may be of a disk that does not answer. */
function descriptorsOfRoot({ root }: Node): { inotify: number; pipes: number } {
  const pipes = new Set<string>();
  let inotify = 0;
  for (const pid of namesIn(join(root, "/proc")).filter((name) => /^\d+$/.test(name))) {
    const folder = join(root, "/proc", pid);
    if (!isRoots(folder)) continue;
    for (const fd of namesIn(join(folder, "fd"))) {
      const target = linkOf(join(folder, "fd", fd));
      if (target === "anon_inode:inotify") inotify++;
      if (target.startsWith("pipe:") || /\/std(in|out|err)( \(deleted\))?$/.test(target))
        pipes.add(target);
    }
  }
  return { inotify, pipes: pipes.size };
}

function isRoots(folder: string): boolean {
  try {
    return statSync(folder).uid === 0;
  } catch {
    return false; // it has ended
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return []; // it has ended, or belongs to another user
  }
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return "";
  }
}
