// Writes the limits of pods for which no kubelet makes a cgroup, or converts them for systemd. The OCI runtime sets the
// limits of containers.
import { join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import type { OciResources } from "../spec/oci_types.ts";
import { writeKernelFile } from "../sys/file.ts";
import { isGone, type CgroupPaths } from "./cgroup.ts";

/**
 * Writes CPU and memory limits; -1: none.
 * @throws CriError FAILED_PRECONDITION with the file and value that the kernel refuses.
 */
export function writeLimits(paths: CgroupPaths, resources: OciResources): void {
  for (const [file, value] of limitFiles(paths, resources)) {
    try {
      writeKernelFile(file, value);
    } catch (cause) {
      const hint = isGone(cause) ? " (is the controller enabled?)" : "";
      const message = `cannot write ${value} to ${file}: ${messageOf(cause)}${hint}`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
  }
}

/** Returns the files to write, with their values, in order. */
export function limitFiles(paths: CgroupPaths, resources: OciResources): [string, string][] {
  const { unified } = paths;
  return unified === undefined ? v1Files(paths, resources) : v2Files(unified, resources);
}

/** Kernel documentation, cgroup-v1: memory.rst, sched-bwc.rst. */
function v1Files({ memory, cpu }: CgroupPaths, limits: OciResources): [string, string][] {
  const files: [string, string][] = [];
  const put = (folder: string | undefined, name: string, value: bigint | undefined) => {
    if (folder !== undefined && value !== undefined) files.push([join(folder, name), `${value}`]);
  };
  put(memory, "memory.limit_in_bytes", limits.memory?.limit);
  put(cpu, "cpu.shares", limits.cpu?.shares);
  // Remove the old quota first: it may be invalid with the new period.
  if (limits.cpu?.period !== undefined) put(cpu, "cpu.cfs_quota_us", -1n);
  put(cpu, "cpu.cfs_period_us", limits.cpu?.period);
  put(cpu, "cpu.cfs_quota_us", limits.cpu?.quota);
  return files;
}

/** Kernel documentation, cgroup-v2.rst. */
function v2Files(folder: string, limits: OciResources): [string, string][] {
  const files: [string, string][] = [];
  const { memory, cpu } = limits;
  if (memory?.limit !== undefined) files.push([join(folder, "memory.max"), max(memory.limit)]);
  const weight = cpuWeight(limits);
  if (weight !== undefined) files.push([join(folder, "cpu.weight"), weight]);
  if (cpu?.quota !== undefined) {
    files.push([join(folder, "cpu.max"), `${max(cpu.quota)} ${cpu.period ?? 100_000n}`]);
  }
  return files;
}

function max(value: bigint): string {
  return value < 0n ? "max" : `${value}`;
}

/** systemd's and the kernel's, in microseconds. */
const usualPeriod = 100_000n;

/** Returns systemd's properties for the limits (systemd.resource-control(5)). */
export function limitProperties(version: 1 | 2, limits: OciResources): string[] {
  const { memory, cpu } = limits;
  const properties: string[] = [];
  if (memory?.limit !== undefined) {
    const bytes = memory.limit < 0n ? "infinity" : `${memory.limit}`;
    properties.push(`${version === 2 ? "MemoryMax" : "MemoryLimit"}=${bytes}`);
  }
  if (version === 2) {
    const weight = cpuWeight(limits);
    if (weight !== undefined) properties.push(`CPUWeight=${weight}`);
  } else if (cpu?.shares !== undefined) properties.push(`CPUShares=${cpu.shares}`);
  if (cpu?.quota === undefined) return properties;
  const period = cpu.period ?? usualPeriod;
  // In hundredths of a percent, rounded up: a pod gets at least what it asks for.
  const share = Number((cpu.quota * 10_000n + period - 1n) / period) / 100;
  const quota = cpu.quota < 0n ? "" : `${share.toFixed(2)}%`;
  // The property needs systemd 242.
  if (period !== usualPeriod) properties.push(`CPUQuotaPeriodSec=${period}us`);
  return [...properties, `CPUQuota=${quota}`];
}

/**
 * Maps v1's shares (2 to 262144, default 1024) to v2's weight (1 to 10000, default 100) by the curve of runc
 * 1.3.2, crun 1.23 and the kubelet of 1.35, so that these pods and the kubelet's compete by the same measure.
 */
function cpuWeight({ cpu, unified }: OciResources): string | undefined {
  if (cpu?.shares === undefined) return unified?.["cpu.weight"];
  const log = Math.log2(Math.min(Math.max(Number(cpu.shares), 2), 262_144));
  return `${Math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))}`;
}
