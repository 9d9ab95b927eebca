// Converts CRI's LinuxContainerResources to OCI resources, and merges updates. In CRI, 0 means "unspecified".
import { toBigInt, toLong } from "../base/int64.ts";
import { jsonText } from "../base/json.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import type { HostInfo } from "./spec_inputs.ts";
import { nonEmpty, type OciDeviceRule, type OciResources } from "./oci_types.ts";
import { invalid, unsupported } from "./refusals.ts";

/** oom_score_adj of pause containers, the same as in kubelet's own sandboxes: killed after all containers. */
export const sandboxOomScoreAdj = -998;

/** @throws CriError INVALID_ARGUMENT for contradictory, FAILED_PRECONDITION for unsupported values. */
export function ociResources(
  resources: LinuxContainerResources,
  devices: OciDeviceRule[],
  host: HostInfo,
): OciResources {
  const result: OciResources = { devices };
  const cpu = cpuResources(resources);
  if (cpu !== undefined) result.cpu = cpu;
  const memory = memoryResources(resources, host);
  if (memory !== undefined) result.memory = memory;
  const hugepages = hugepageLimits(resources, host);
  if (hugepages.length > 0) result.hugepageLimits = hugepages;
  const unified = resources.unified ?? {};
  if (Object.keys(unified).length > 0) {
    if (host.cgroupVersion === 1) {
      throw unsupported("resources.unified needs cgroup v2; this host runs cgroup v1");
    }
    for (const key of Object.keys(unified)) {
      if (/^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$/.test(key)) continue;
      throw invalid(`resources.unified: "${key}" is not the name of a cgroup file`);
    }
    result.unified = { ...unified };
  }
  return result;
}

const numbers = [
  "cpu_period",
  "cpu_quota",
  "cpu_shares",
  "memory_limit_in_bytes",
  "memory_swap_limit_in_bytes",
  "oom_score_adj",
] as const;

/**
 * Returns the resources after an update; unspecified fields stay, except the swap limit: it includes the memory limit,
 * so a new memory limit without a swap limit removes it. That allows no swap, as in a new container.
 */
export function mergedResources(
  old: LinuxContainerResources,
  given: LinuxContainerResources,
): LinuxContainerResources {
  const merged = { ...old };
  for (const field of numbers) if (toBigInt(given[field]) !== 0n) merged[field] = given[field];
  const { memory_limit_in_bytes: limit, memory_swap_limit_in_bytes: swap } = given;
  if (toBigInt(limit) !== 0n && toBigInt(swap) === 0n) delete merged.memory_swap_limit_in_bytes;
  if (given.cpuset_cpus) merged.cpuset_cpus = given.cpuset_cpus;
  if (given.cpuset_mems) merged.cpuset_mems = given.cpuset_mems;
  const pages = new Map((old.hugepage_limits ?? []).map((limit) => [limit.page_size, limit]));
  for (const limit of given.hugepage_limits ?? []) pages.set(limit.page_size, limit);
  merged.hugepage_limits = [...pages.values()];
  merged.unified = { ...old.unified, ...given.unified };
  return merged;
}

/** True if an update asks for what the record has already. */
export function isSameRequest(
  old: LinuxContainerResources,
  merged: LinuxContainerResources,
): boolean {
  const pages = ({ hugepage_limits }: LinuxContainerResources) =>
    (hugepage_limits ?? []).map(({ page_size, limit }) => `${page_size} ${toBigInt(limit)}`);
  const texts = (one: LinuxContainerResources) => [
    one.cpuset_cpus || "",
    one.cpuset_mems || "",
    Object.entries(one.unified ?? {}).toSorted(([a], [b]) => (a < b ? -1 : 1)),
    pages(one).toSorted(),
  ];
  const isSame = numbers.every((field) => toBigInt(old[field]) === toBigInt(merged[field]));
  return isSame && jsonText(texts(old)) === jsonText(texts(merged));
}

/**
 * Returns the resources to record of a container that NRI plugins adjusted at its creation. Limits of huge pages stay
 * those of CRI: they cannot change later, and a kubelet repeats its own in each update.
 */
export function adjustedRecord(
  requested: LinuxContainerResources,
  adjusted: LinuxContainerResources,
): LinuxContainerResources {
  const { hugepage_limits = [] } = requested;
  return { ...mergedResources(requested, adjusted), hugepage_limits };
}

/**
 * Accepts for a running container the limits on record, since a kubelet repeats them, and the limits in the bundle,
 * since NRI plugins may have set them. @throws CriError FAILED_PRECONDITION for others: runtimes cannot change limits.
 */
export function checkHugepages(
  old: LinuxContainerResources,
  merged: LinuxContainerResources,
  bundle: OciResources,
): void {
  const recorded = new Map((old.hugepage_limits ?? []).map((one) => [one.page_size, one.limit]));
  const set = new Map((bundle.hugepageLimits ?? []).map((one) => [one.pageSize, one.limit]));
  for (const { page_size, limit } of merged.hugepage_limits ?? []) {
    const wanted = toBigInt(limit);
    if (wanted === toBigInt(recorded.get(page_size))) continue;
    if (wanted === set.get(ociPageSize(page_size))) continue;
    throw unsupported(
      `hugepage_limits: the limit of ${page_size} cannot be changed in a running container`,
    );
  }
}

/** Returns OCI's name of a page size, such as "2MB", for CRI's "2MB", "2MiB" or "2M". */
export function ociPageSize(size: string | null | undefined): string {
  return (size ?? "").replace(/i?B$/, "") + "B";
}

/**
 * Returns a bundle's resources with the fields that changed between `was` and `wanted` (both from CRI);
 * fields from a handler's base spec stay.
 */
export function updatedResources(
  bundle: OciResources,
  { was, wanted }: { was: OciResources; wanted: OciResources },
): OciResources {
  const pages = new Map((bundle.hugepageLimits ?? []).map((one) => [one.pageSize, one]));
  const old = new Map((was.hugepageLimits ?? []).map((one) => [one.pageSize, one.limit]));
  for (const one of wanted.hugepageLimits ?? []) {
    if (one.limit !== old.get(one.pageSize)) pages.set(one.pageSize, one);
  }
  return {
    ...bundle,
    ...nonEmpty("memory", { ...bundle.memory, ...changes(was.memory, wanted.memory) }),
    ...nonEmpty("cpu", { ...bundle.cpu, ...changes(was.cpu, wanted.cpu) }),
    ...nonEmpty("unified", { ...bundle.unified, ...changes(was.unified, wanted.unified) }),
    ...(pages.size > 0 ? { hugepageLimits: [...pages.values()] } : {}),
  };
}

function changes<T extends object>(was: T | undefined, wanted: T | undefined): Partial<T> {
  const old = new Map<string, unknown>(Object.entries(was ?? {}));
  const news = Object.entries(wanted ?? {}).filter(([key, value]) => old.get(key) !== value);
  return Object.fromEntries(news) as Partial<T>;
}

/** Replaces negative limits by -1, no limit. */
export function withoutNegativeLimits(resources: LinuxContainerResources): LinuxContainerResources {
  const result = { ...resources };
  for (const field of ["cpu_quota", "memory_limit_in_bytes"] as const) {
    if (toBigInt(resources[field]) < 0n) result[field] = toLong(-1n);
  }
  return result;
}

/** Adds a pod's overhead to each limit that is set for its containers. */
export function summedResources(
  resources: LinuxContainerResources,
  overhead: LinuxContainerResources,
): LinuxContainerResources {
  const sum = { ...resources };
  for (const field of ["cpu_quota", "cpu_shares", "memory_limit_in_bytes"] as const) {
    const [own, more] = [toBigInt(resources[field]), toBigInt(overhead[field])];
    if (own > 0n && more > 0n) sum[field] = toLong(own + more);
  }
  return sum;
}

/** The kernel's defaults. */
const [periodDefault, sharesDefault, weightDefault] = [100_000n, 1_024n, "100"];

/**
 * Returns the resources with all defaults filled in. A runtime's update leaves absent fields unchanged, so
 * rolling an update back must set the fields that were absent before it. Fields of a controller that the host does not
 * have are left out: an update cannot have changed them, and runtimes refuse them.
 */
export function explicitResources(
  resources: OciResources,
  host: HostInfo,
  cpuset: { cpus?: string; mems?: string },
): OciResources {
  const { memory, cpu, unified, ...others } = resources;
  const isV2 = host.cgroupVersion === 2;
  const has = (controller: string) => !host.absentControllers.includes(controller);
  const { cpus, mems, ...shares } = cpu ?? {};
  const weight = isV2 && has("cpu") && cpu?.shares === undefined;
  return {
    ...others,
    ...nonEmpty("memory", {
      ...(has("memory") ? { limit: memory?.limit ?? -1n } : {}),
      ...(has("memory") && host.swapLimit ? { swap: memory?.swap ?? -1n } : {}),
    }),
    ...nonEmpty("cpu", {
      ...(has("cpuset") ? { cpus: cpus ?? cpuset.cpus, mems: mems ?? cpuset.mems } : {}),
      ...(has("cpu") ? { quota: -1n, period: periodDefault } : {}),
      ...(has("cpu") && !isV2 ? { shares: sharesDefault } : {}),
      ...(has("cpu") ? shares : {}),
    }),
    ...(weight ? { unified: { "cpu.weight": weightDefault, ...unified } } : { unified }),
  };
}

/**
 * Returns what explains a runtime's error about limits: the controllers of these limits that the host does not have.
 * "": the host has them all, or the error is about something else.
 */
export function controllerAdvice(
  { cpu, memory, pids }: OciResources,
  host: HostInfo,
  message: string,
): string {
  const { cpus, mems, ...time } = cpu ?? {};
  const isLimited: Record<string, boolean> = {
    memory: Object.values(memory ?? {}).some((value) => value !== undefined),
    cpu: Object.values(time).some((value) => value !== undefined),
    cpuset: Boolean(cpus) || Boolean(mems),
    pids: pids !== undefined,
  };
  const absent = host.absentControllers.filter((name) => isLimited[name] === true);
  if (absent.length === 0 || !/cgroup|controller|limit/i.test(message)) return "";
  const [first] = absent;
  return `; this node has no ${absent.join(" and no ")} controller: add cgroup_enable=${first} to the kernel's command line or mount the controller, or request no limit of it`;
}

/**
 * Returns the oom_score_adj to run with; with restrict, no lower than the daemon's own, because that needs
 * CAP_SYS_RESOURCE.
 * @throws CriError INVALID_ARGUMENT outside −1000–1000.
 */
export function oomScoreAdj(wanted: bigint, host: HostInfo, restrict: boolean): number {
  if (wanted < -1000n || wanted > 1000n) {
    throw invalid(`oom_score_adj ${wanted} is outside -1000–1000`);
  }
  const value = Number(wanted);
  return restrict ? Math.max(value, host.oomScoreAdj) : value;
}

/**
 * Returns the oom_score_adj that an update can set: clamped rather than rejected if the kernel forbids it.
 * @throws CriError INVALID_ARGUMENT outside −1000–1000.
 */
export function possibleOomScoreAdj(wanted: bigint, host: HostInfo, restrict: boolean): number {
  const mayLower = host.capabilities.includes("CAP_SYS_RESOURCE");
  return oomScoreAdj(wanted, host, restrict || !mayLower);
}

/** Returns the advice for a failed start whose oom_score_adj this daemon may not set; "" if it may set the value. */
export function oomScoreAdjAdvice(wanted: bigint, host: HostInfo, restrict: boolean): string {
  const own = possibleOomScoreAdj(wanted, host, restrict);
  if (own === oomScoreAdj(wanted, host, restrict)) return "";
  return `; its oom_score_adj ${wanted} is lower than the daemon's ${own}, which needs CAP_SYS_RESOURCE: set restrict-oom-score-adj`;
}

/** Drops a swap limit that this host does not support; undefined: nothing to drop. */
export function withoutSwapLimit(
  resources: LinuxContainerResources | null | undefined,
  host: HostInfo,
): LinuxContainerResources | undefined {
  if (host.swapLimit || toBigInt(resources?.memory_swap_limit_in_bytes) === 0n) return undefined;
  return { ...resources, memory_swap_limit_in_bytes: toLong(0n) };
}

/**
 * Drops a swap limit below the memory limit. Records of earlier versions have one after an NRI plugin raised only
 * the memory limit; the container has no swap then.
 */
export function withoutLowSwapLimit(resources: LinuxContainerResources): LinuxContainerResources {
  const limit = toBigInt(resources.memory_limit_in_bytes);
  const { memory_swap_limit_in_bytes: swapLimit, ...others } = resources;
  const swap = toBigInt(swapLimit);
  return swap > 0n && (limit > swap || limit < 0n) ? others : resources;
}

/** Returns the resources without limits of huge pages; undefined: they have none. */
export function withoutHugepageLimits(
  resources: LinuxContainerResources | null | undefined,
): LinuxContainerResources | undefined {
  const isGiven = (resources?.hugepage_limits ?? []).length > 0;
  return isGiven ? { ...resources, hugepage_limits: [] } : undefined;
}

function cpuResources(resources: LinuxContainerResources): OciResources["cpu"] {
  const cpu: NonNullable<OciResources["cpu"]> = {};
  const shares = toBigInt(resources.cpu_shares);
  const quota = toBigInt(resources.cpu_quota);
  const period = toBigInt(resources.cpu_period);
  if (shares < 0n || period < 0n) {
    throw invalid("cpu_shares and cpu_period cannot be negative");
  }
  if (shares !== 0n) cpu.shares = shares;
  if (quota !== 0n) cpu.quota = quota;
  if (period !== 0n) cpu.period = period;
  if (resources.cpuset_cpus) cpu.cpus = resources.cpuset_cpus;
  if (resources.cpuset_mems) cpu.mems = resources.cpuset_mems;
  return Object.keys(cpu).length > 0 ? cpu : undefined;
}

function memoryResources(
  resources: LinuxContainerResources,
  host: HostInfo,
): OciResources["memory"] {
  const limit = toBigInt(resources.memory_limit_in_bytes);
  let swap = toBigInt(resources.memory_swap_limit_in_bytes);
  if (swap > 0n && limit > swap) {
    throw invalid(
      `memory_swap_limit_in_bytes ${swap} is below memory_limit_in_bytes ${limit}, which it includes`,
    );
  }
  // A memory limit alone allows no swap; the kernel's default would be unlimited swap on top. -1 lifts both.
  if (swap === 0n) swap = limit;
  if (!host.swapLimit) swap = 0n;
  const memory: NonNullable<OciResources["memory"]> = {};
  if (limit !== 0n) memory.limit = limit;
  if (swap !== 0n) memory.swap = swap;
  return Object.keys(memory).length > 0 ? memory : undefined;
}

function hugepageLimits(
  resources: LinuxContainerResources,
  host: HostInfo,
): NonNullable<OciResources["hugepageLimits"]> {
  const result = [];
  for (const { page_size, limit } of resources.hugepage_limits ?? []) {
    const pageSize = ociPageSize(page_size);
    const bytes = toBigInt(limit);
    if (host.hugepageSizes.includes(pageSize)) {
      result.push({ pageSize, limit: bytes });
    } else if (bytes !== 0n) {
      // The kubelet sends a limit of 0 for every known size; only nonzero limits must be supported.
      throw unsupported(
        `hugepage limit of ${bytes} bytes for page size "${page_size}": this host's hugetlb controller supports ${host.hugepageSizes.join(", ") || "no size (it is not mounted)"}`,
      );
    }
  }
  return result;
}
