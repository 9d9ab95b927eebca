// Refuses memory limits that would have processes OOM-killed. The kernel of cgroup v2 takes any limit, and kills until
// the rest fits; that of v1 refuses a limit that it cannot reach.
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import type { OciResources } from "../spec/oci_types.ts";
import { readKernelFile } from "../sys/file.ts";
import type { CgroupPaths } from "./cgroup.ts";
import { numberIn, parseKeyed, type Read } from "./cgroup_file.ts";

type Limits = Pick<OciResources, "memory" | "unified">;

/**
 * Checks a change of limits before it is made; owner: whose cgroup it is, such as "container 4f2a". parts: the cgroups of
 * a pod's containers, whose own swap limits hold.
 * @throws CriError FAILED_PRECONDITION for a lower limit than what the cgroup holds
 */
export function requireMemoryRoom(
  owner: string,
  paths: CgroupPaths,
  { before, after, parts }: { before: Limits; after: Limits; parts?: string[] },
): void {
  const limit = after.memory?.limit ?? -1n;
  const old = before.memory?.limit ?? -1n;
  if (limit < 0n || (old >= 0n && limit >= old)) return;
  const held = heldMemory(paths, parts === undefined ? { after } : { parts });
  if (held === undefined || limit >= held) return;
  const message = `updating ${owner}: with a memory limit of ${limit} bytes its processes would be OOM-killed, because the kernel cannot reclaim ${held} bytes of what it uses; set a higher limit, or let processes release memory (files in a tmpfs are memory, too)`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/**
 * Returns bytes: without file pages and caches, which the kernel can drop, and without what fits into swap. undefined:
 * on v1, or once the cgroup has been removed. after: limits that the cgroup gets.
 */
export function heldMemory(
  { unified }: CgroupPaths,
  { after = {}, parts }: { after?: Limits; parts?: string[] } = {},
  read: Read = readKernelFile,
): bigint | undefined {
  if (unified === undefined) return undefined;
  const current = numberIn(join(unified, "memory.current"), read);
  const stat = statOf(unified, read);
  if (current === undefined || stat === undefined) return undefined;
  const dropped = stat("active_file", "inactive_file", "slab_reclaimable");
  let swapped = 0n;
  for (const part of parts ?? [unified]) swapped += swappable(part, after, read);
  return current - dropped - smaller(swapped, freeSwap(read));
}

/** Returns the sum of some counters of memory.stat; undefined once the cgroup has been removed. */
function statOf(folder: string, read: Read): ((...keys: string[]) => bigint) | undefined {
  const text = read(join(folder, "memory.stat"));
  if (text === undefined) return undefined;
  const stat = parseKeyed(text);
  return (...keys) => keys.reduce((bytes, key) => bytes + (stat(key) ?? 0n), 0n);
}

/** Returns what the cgroup's swap limit lets the kernel swap out; 0 where swap is not counted. */
function swappable(folder: string, limits: Limits, read: Read): bigint {
  const pages = statOf(folder, read)?.("active_anon", "inactive_anon") ?? 0n;
  const used = numberIn(join(folder, "memory.swap.current"), read);
  if (used === undefined) return 0n;
  const limit = swapLimit(limits) ?? numberIn(join(folder, "memory.swap.max"), read) ?? -1n;
  if (limit < 0n) return pages;
  return limit > used ? smaller(pages, limit - used) : 0n;
}

/** Returns the memory.swap.max that the runtime will write; -1: none; undefined: it writes nothing. */
function swapLimit({ memory, unified }: Limits): bigint | undefined {
  const own = unified?.["memory.swap.max"] ?? "";
  if (own === "max") return -1n;
  if (/^\d+$/.test(own)) return BigInt(own);
  const { swap = 0n, limit = 0n } = memory ?? {};
  if (swap === 0n) return undefined;
  return swap < 0n || limit < 0n ? -1n : swap - limit; // OCI's swap limit includes the memory limit
}

/** Returns what is free on all swap devices (proc(5), /proc/swaps: sizes in KiB). */
function freeSwap(read: Read): bigint {
  const [, ...devices] = (read("/proc/swaps") ?? "").trimEnd().split("\n");
  let free = 0n;
  for (const device of devices) {
    const [, , size = "0", used = "0"] = device.split(/\s+/);
    free += (BigInt(size) - BigInt(used)) * 1024n;
  }
  return free;
}

function smaller(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}
