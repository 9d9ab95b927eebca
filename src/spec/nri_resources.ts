// Merges NRI's resources into OCI resources: fields that plugins set replace the old values, others stay.
import { toBigInt } from "../base/int64.ts";
import type { LinuxCPU, LinuxMemory, LinuxResources } from "../proto/nri_types.ts";
import type { HostInfo } from "./spec_inputs.ts";
import type { OciBlockIO, OciCpu, OciDeviceRule, OciMemory, OciResources } from "./oci_types.ts";
import { unsupported } from "./refusals.ts";
import { ociPageSize } from "./resources.ts";

const memoryFields = {
  limit: "limit",
  reservation: "reservation",
  swap: "swap",
  kernel: "kernel",
  kernel_tcp: "kernelTCP",
  swappiness: "swappiness",
} as const;
const cpuFields = {
  shares: "shares",
  quota: "quota",
  period: "period",
  realtime_runtime: "realtimeRuntime",
  realtime_period: "realtimePeriod",
} as const;

/** @throws CriError FAILED_PRECONDITION for limits that this host does not support. */
export function adjustedResources(
  old: OciResources,
  given: LinuxResources,
  { host, blockIO }: { host: HostInfo; blockIO?: OciBlockIO },
): OciResources {
  const result = { ...old };
  const memory = adjustedMemory(old.memory ?? {}, given.memory ?? {}, host);
  if (Object.keys(memory).length > 0) result.memory = memory;
  const cpu = adjustedCpu(old.cpu ?? {}, given.cpu ?? {});
  if (Object.keys(cpu).length > 0) result.cpu = cpu;
  const pages = new Map((old.hugepageLimits ?? []).map((limit) => [limit.pageSize, limit]));
  for (const { page_size, limit } of given.hugepage_limits ?? []) {
    const pageSize = ociPageSize(page_size);
    if (!host.hugepageSizes.includes(pageSize)) {
      throw cannot(`a hugepage limit for ${pageSize}`, "this host's hugetlb controller lacks it");
    }
    pages.set(pageSize, { pageSize, limit: toBigInt(limit) });
  }
  if (pages.size > 0) result.hugepageLimits = [...pages.values()];
  const unified = Object.entries(given.unified ?? {});
  if (unified.length > 0) {
    if (host.cgroupVersion === 1) {
      throw cannot("resources.unified", "it needs cgroup v2, and this host runs cgroup v1");
    }
    result.unified = { ...old.unified, ...Object.fromEntries(unified) };
  }
  if (given.pids) {
    const limit = toBigInt(given.pids.limit);
    result.pids = { limit: limit > 0n ? limit : -1n };
  }
  const rules = (given.devices ?? []).map((rule): OciDeviceRule => {
    const { type, major, minor } = rule;
    return {
      allow: rule.allow ?? false,
      ...(type ? { type: type as OciDeviceRule["type"] } : {}),
      ...(major ? { major: Number(toBigInt(major.value)) } : {}),
      ...(minor ? { minor: Number(toBigInt(minor.value)) } : {}),
      access: rule.access || "rwm",
    };
  });
  if (rules.length > 0) result.devices = [...old.devices, ...rules];
  if (given.blockio_class) delete result.blockIO;
  if (given.blockio_class?.value && blockIO !== undefined) result.blockIO = blockIO;
  return result;
}

/** A memory limit without a swap limit allows no swap on top, as in CRI (resources.ts). */
function adjustedMemory(old: OciMemory, given: LinuxMemory, host: HostInfo): OciMemory {
  const result = { ...old };
  for (const [from, to] of Object.entries(memoryFields)) {
    const value = given[from as keyof typeof memoryFields];
    if (value) result[to] = toBigInt(value.value);
  }
  if (given.limit && !given.swap) {
    if (host.swapLimit) result.swap = toBigInt(given.limit.value);
    else delete result.swap;
  }
  const { disable_oom_killer: noKiller, use_hierarchy: hierarchy } = given;
  if (noKiller) result.disableOOMKiller = noKiller.value ?? false;
  if (hierarchy) result.useHierarchy = hierarchy.value ?? false;
  return result;
}

function adjustedCpu(old: OciCpu, given: LinuxCPU): OciCpu {
  const result = { ...old };
  for (const [from, to] of Object.entries(cpuFields)) {
    const value = given[from as keyof typeof cpuFields];
    if (value) result[to] = toBigInt(value.value);
  }
  if (given.cpus) result.cpus = given.cpus;
  if (given.mems) result.mems = given.mems;
  return result;
}

export function cannot(field: string, why: string): Error {
  return unsupported(`an NRI plugin sets ${field}: ${why}`);
}
