// Converts readings to CRI's stats messages. Pure. Unknown figures stay unset: 0 would be taken literally.
import { toLong } from "../base/int64.ts";
import type { MemoryUsage, Pressure, Pressures } from "./cgroup_usage.ts";
import type { DiskUsage } from "./disk_usage.ts";
import type { InterfaceUsage } from "./network_stats.ts";
import type { Sample } from "./sampler.ts";
import type {
  ContainerStats,
  CpuUsage,
  FilesystemUsage,
  LinuxPodSandboxStats,
  MemoryUsage as CriMemoryUsage,
  NetworkInterfaceUsage,
  NetworkUsage,
  PsiData,
  PsiStats,
  SwapUsage,
  UInt64Value,
} from "../proto/types.ts";

/** Returns the fields that the stats of containers and pods have in common. */
export function cgroupStats(sample: Sample): Pick<LinuxPodSandboxStats, "cpu" | "memory" | "io"> {
  const timestamp = toLong(sample.atNs);
  const { cpuNs, nanoCores, memory, ioPressure } = sample;
  const cpu: CpuUsage = {
    timestamp,
    usage_core_nano_seconds: value(cpuNs),
    usage_nano_cores: value(nanoCores),
    psi: psi(sample.cpuPressure),
  };
  return {
    cpu: cpuNs === undefined ? undefined : cpu,
    memory: memory && { timestamp, ...memoryUsage(memory), psi: psi(sample.memoryPressure) },
    io: ioPressure && { timestamp, psi: psi(ioPressure) },
  };
}

function memoryUsage(memory: MemoryUsage): CriMemoryUsage {
  const { limit, workingSet } = memory;
  return {
    working_set_bytes: value(workingSet),
    available_bytes: value(limit === undefined ? undefined : left(limit, workingSet)),
    usage_bytes: value(memory.usage),
    rss_bytes: value(memory.rss),
    page_faults: value(memory.pageFaults),
    major_page_faults: value(memory.majorPageFaults),
  };
}

/** Returns the fields that only a container's stats have. */
export function containerOnlyStats(
  sample: Sample,
  layer: DiskUsage | undefined,
  mountpoint: string,
): Pick<ContainerStats, "swap" | "writable_layer"> {
  return { swap: swapUsage(sample), writable_layer: layer && filesystemUsage(layer, mountpoint) };
}

function swapUsage({ atNs, memory }: Sample): SwapUsage | undefined {
  if (memory?.swap === undefined) return undefined;
  const { swap, swapLimit } = memory;
  return {
    timestamp: toLong(atNs),
    swap_available_bytes: value(swapLimit === undefined ? undefined : left(swapLimit, swap)),
    swap_usage_bytes: value(swap),
  };
}

/** inodes: undefined if unknown. */
export function filesystemUsage(
  { atNs, bytes, inodes }: Omit<DiskUsage, "inodes"> & { inodes: bigint | undefined },
  mountpoint: string,
): FilesystemUsage {
  return {
    timestamp: toLong(atNs),
    fs_id: { mountpoint },
    used_bytes: value(bytes),
    inodes_used: value(inodes),
  };
}

/**
 * Returns the usage by interface; the default interface is eth0, CNI's name for it, or else the first. undefined
 * without interfaces, as while a pod is stopped: a kubelet does not check whether the message has a default interface,
 * and panics if it has none (criInterfaceToSummary in pkg/kubelet/stats/cri_stats_provider.go, up to 1.36).
 */
export function networkUsage(atNs: bigint, interfaces: InterfaceUsage[]): NetworkUsage | undefined {
  const first = interfaces.find(({ name }) => name === "eth0") ?? interfaces[0];
  if (first === undefined) return undefined;
  return {
    timestamp: toLong(atNs),
    default_interface: interfaceUsage(first),
    interfaces: interfaces.filter((one) => one !== first).map(interfaceUsage),
  };
}

function interfaceUsage(usage: InterfaceUsage): NetworkInterfaceUsage {
  return {
    name: usage.name,
    rx_bytes: value(usage.rxBytes),
    rx_errors: value(usage.rxErrors),
    tx_bytes: value(usage.txBytes),
    tx_errors: value(usage.txErrors),
  };
}

function psi(pressures: Pressures | undefined): PsiStats | undefined {
  if (pressures === undefined) return undefined;
  return { Some: psiData(pressures.some), Full: psiData(pressures.full) };
}

function psiData(pressure: Pressure | undefined): PsiData | undefined {
  if (pressure === undefined) return undefined;
  const { totalNs, avg10, avg60, avg300 } = pressure;
  return { Total: toLong(totalNs), Avg10: avg10, Avg60: avg60, Avg300: avg300 };
}

function left(limit: bigint, used: bigint): bigint {
  return limit > used ? limit - used : 0n;
}

export function value(count: bigint | undefined): UInt64Value | undefined {
  return count === undefined ? undefined : { value: toLong(count) };
}
