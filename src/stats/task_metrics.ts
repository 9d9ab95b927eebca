// Reads the figures of a container from its shim's answer to Stats: those of a cgroup v1 or v2, which may be the
// guest's. A guest counts less than this node's cgroups do: figures that it leaves out are 0 in the message.
import { nowNs } from "../base/clock.ts";
import { toBigInt } from "../base/int64.ts";
import { finiteLimit } from "../node/cgroup_file.ts";
import { task } from "../proto/task.js";
import type { CgroupUsage, MemoryUsage } from "./cgroup_usage.ts";

/** Returns undefined for an answer of another type. @throws for one that cannot be decoded. */
export function usageOfTask(answer: Uint8Array): CgroupUsage | undefined {
  const { stats } = task.StatsResponse.decode(answer);
  const usage = readerOf(stats?.type_url ?? "")?.(stats!.value ?? new Uint8Array());
  return usage && { atNs: nowNs(), ...usage };
}

type Reader = (value: Uint8Array) => Omit<CgroupUsage, "atNs">;

/** A type URL may have a prefix, such as types.containerd.io/. */
function readerOf(typeUrl: string): Reader | undefined {
  if (typeUrl.endsWith("io.containerd.cgroups.v1.Metrics")) return readV1;
  return typeUrl.endsWith("io.containerd.cgroups.v2.Metrics") ? readV2 : undefined;
}

function readV1(value: Uint8Array): Omit<CgroupUsage, "atNs"> {
  const { pids, cpu, memory } = task.MetricsV1.decode(value);
  const n = (total: Count, own: Count) => toBigInt(total) || toBigInt(own);
  return {
    processes: processCount(pids?.current),
    cpuNs: cpu?.usage ? toBigInt(cpu.usage.total) : undefined,
    memory: memory?.usage
      ? memoryUsage(toBigInt(memory.usage.usage), {
          rss: n(memory.total_rss, memory.rss),
          cache: n(memory.total_cache, memory.cache),
          mapped: n(memory.total_mapped_file, memory.mapped_file),
          activeFile: n(memory.total_active_file, memory.active_file),
          inactiveFile: n(memory.total_inactive_file, memory.inactive_file),
          pageFaults: n(memory.total_pg_fault, memory.pg_fault),
          majorPageFaults: n(memory.total_pg_maj_fault, memory.pg_maj_fault),
          limit: limitOf(memory.usage.limit),
        })
      : undefined,
  };
}

function readV2(value: Uint8Array): Omit<CgroupUsage, "atNs"> {
  const { pids, cpu, memory } = task.MetricsV2.decode(value);
  return {
    processes: processCount(pids?.current),
    cpuNs: cpu ? toBigInt(cpu.usage_usec) * 1000n : undefined,
    memory: memory
      ? memoryUsage(toBigInt(memory.usage), {
          rss: toBigInt(memory.anon),
          cache: toBigInt(memory.file),
          mapped: toBigInt(memory.file_mapped),
          activeFile: toBigInt(memory.active_file),
          inactiveFile: toBigInt(memory.inactive_file),
          pageFaults: toBigInt(memory.pgfault),
          majorPageFaults: toBigInt(memory.pgmajfault),
          limit: limitOf(memory.usage_limit),
          swap: toBigInt(memory.swap_usage),
          swapLimit: limitOf(memory.swap_limit),
        })
      : undefined,
  };
}

type Count = Parameters<typeof toBigInt>[0];

/** A running container has a process: 0 means that nobody counts them. */
function processCount(count: Count): bigint | undefined {
  return toBigInt(count) || undefined;
}

function memoryUsage(usage: bigint, rest: Omit<MemoryUsage, "usage" | "workingSet">): MemoryUsage {
  const used = usage - rest.inactiveFile;
  return { usage, workingSet: used < 0n ? 0n : used, ...rest };
}

/** 0 and a number beyond any memory mean no limit. */
function limitOf(limit: Count): bigint | undefined {
  return finiteLimit(toBigInt(limit) || undefined);
}
