// Refuses memory limits that would have processes OOM-killed. The kernel of cgroup v2 takes any limit, and kills until
// the rest fits; that of v1 refuses a limit that it cannot reach.
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import type { OciResources } from "../spec/oci_types.ts";
import { readKernelFile } from "../sys/file.ts";
import type { CgroupPaths } from "./cgroup.ts";
import { numberIn, parseKeyed, type Read } from "./cgroup_file.ts";

/**
 * Checks a change of limits before it is made; owner: whose cgroup it is, such as "container 4f2a".
 * @throws CriError FAILED_PRECONDITION for a lower limit than what the cgroup holds
 */
export function requireMemoryRoom(
  owner: string,
  paths: CgroupPaths,
  { before, after }: Record<"before" | "after", Pick<OciResources, "memory">>,
): void {
  const limit = after.memory?.limit ?? -1n;
  const old = before.memory?.limit ?? -1n;
  if (limit < 0n || (old >= 0n && limit >= old)) return;
  const held = heldMemory(paths);
  if (held === undefined || limit >= held) return;
  const message = `updating ${owner}: with a memory limit of ${limit} bytes its processes would be OOM-killed, because the kernel cannot reclaim ${held} bytes of what it uses; set a higher limit, or let processes release memory (files in a tmpfs are memory, too)`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/**
 * Returns bytes: without file pages and caches, which the kernel can drop, and without what fits into swap. undefined:
 * on v1, or once the cgroup has been removed.
 */
export function heldMemory(
  { unified }: CgroupPaths,
  read: Read = readKernelFile,
): bigint | undefined {
  if (unified === undefined) return undefined;
  const current = numberIn(join(unified, "memory.current"), read);
  const text = read(join(unified, "memory.stat"));
  if (current === undefined || text === undefined) return undefined;
  const stat = parseKeyed(text);
  const sum = (...keys: string[]) => keys.reduce((bytes, key) => bytes + (stat(key) ?? 0n), 0n);
  const held = current - sum("active_file", "inactive_file", "slab_reclaimable");
  const swappable = sum("active_anon", "inactive_anon");
  const room = swapRoom(unified, read) ?? swappable;
  return held - (room < swappable ? room : swappable);
}

/** Returns what the cgroup may still swap out; undefined: no limit. */
function swapRoom(folder: string, read: Read): bigint | undefined {
  const [, ...devices] = (read("/proc/swaps") ?? "").trimEnd().split("\n");
  const swapped = numberIn(join(folder, "memory.swap.current"), read);
  if (devices.length === 0 || swapped === undefined) return 0n;
  const limit = numberIn(join(folder, "memory.swap.max"), read);
  if (limit === undefined) return undefined;
  return limit > swapped ? limit - swapped : 0n;
}
