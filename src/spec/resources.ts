// LinuxContainerResources → OCI resources. A CRI value of 0 means "unspecified".
import { CriError } from "../base/errors.ts";
import { toBigInt, toLong } from "../base/int64.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import type { HostInfo } from "./spec_inputs.ts";
import type { OciDeviceRule, OciResources } from "./oci_types.ts";

/** oom_score_adj of a process that outlives the containers it serves: pause, like kubelet's own. */
export const sandboxOomScoreAdj = -998;

/**
 * @throws CriError INVALID_ARGUMENT for values that contradict each other, FAILED_PRECONDITION for
 * limits that this host cannot hold.
 */
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
      throw new CriError(
        "FAILED_PRECONDITION",
        "resources.unified needs cgroup v2; this host runs cgroup v1",
      );
    }
    for (const key of Object.keys(unified)) {
      if (!/^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$/.test(key)) {
        throw new CriError(
          "INVALID_ARGUMENT",
          `resources.unified: "${key}" is not a cgroup file's name`,
        );
      }
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

/** The resources after an update: what is not given stays. */
export function mergedResources(
  old: LinuxContainerResources,
  given: LinuxContainerResources,
): LinuxContainerResources {
  const merged = { ...old };
  for (const field of numbers) if (toBigInt(given[field]) !== 0n) merged[field] = given[field];
  if (given.cpuset_cpus) merged.cpuset_cpus = given.cpuset_cpus;
  if (given.cpuset_mems) merged.cpuset_mems = given.cpuset_mems;
  const pages = new Map((old.hugepage_limits ?? []).map((limit) => [limit.page_size, limit]));
  for (const limit of given.hugepage_limits ?? []) pages.set(limit.page_size, limit);
  merged.hugepage_limits = [...pages.values()];
  merged.unified = { ...old.unified, ...given.unified };
  return merged;
}

/**
 * A bundle's resources with what an update changes of those that CRI asked for; what a handler's base
 * spec says beside them stays.
 */
export function updatedResources(
  bundle: OciResources,
  { was, wanted }: { was: OciResources; wanted: OciResources },
): OciResources {
  const pages = new Map((bundle.hugepageLimits ?? []).map((one) => [one.pageSize, one]));
  for (const one of wanted.hugepageLimits ?? []) pages.set(one.pageSize, one);
  return {
    ...bundle,
    ...overlaid("memory", { ...bundle.memory, ...changes(was.memory, wanted.memory) }),
    ...overlaid("cpu", { ...bundle.cpu, ...changes(was.cpu, wanted.cpu) }),
    ...overlaid("unified", { ...bundle.unified, ...changes(was.unified, wanted.unified) }),
    ...(pages.size > 0 ? { hugepageLimits: [...pages.values()] } : {}),
  };
}

function changes<T extends object>(was: T | undefined, wanted: T | undefined): Partial<T> {
  const old = new Map<string, unknown>(Object.entries(was ?? {}));
  const news = Object.entries(wanted ?? {}).filter(([key, value]) => old.get(key) !== value);
  return Object.fromEntries(news) as Partial<T>;
}

function overlaid(name: string, value: object): object {
  return Object.keys(value).length > 0 ? { [name]: value } : {};
}

/** What a pod gets in all: of each limit that its containers have, theirs and the pod's own. */
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

/** What the kernel has where nothing was asked for. */
const [periodDefault, sharesDefault, weightDefault] = [100_000n, 1_024n, "100"];

/**
 * The same resources with every default spelt out: for a runtime's update what is absent means "as it
 * is", and an update that is undone must also take back what was not there before.
 */
export function explicitResources(
  resources: OciResources,
  host: HostInfo,
  cpuset: { cpus?: string; mems?: string },
): OciResources {
  const { memory, cpu, unified } = resources;
  const isV2 = host.cgroupVersion === 2;
  return {
    ...resources,
    memory: {
      limit: memory?.limit ?? -1n,
      ...(host.swapLimit ? { swap: memory?.swap ?? -1n } : {}),
    },
    cpu: {
      ...cpuset,
      quota: -1n,
      period: periodDefault,
      ...(isV2 ? {} : { shares: sharesDefault }),
      ...cpu,
    },
    ...(isV2 && cpu?.shares === undefined
      ? { unified: { "cpu.weight": weightDefault, ...unified } }
      : {}),
  };
}

/**
 * The oom_score_adj to run with. Lowering it below the daemon's own needs CAP_SYS_RESOURCE.
 * @throws CriError INVALID_ARGUMENT outside −1000–1000.
 */
export function oomScoreAdj(wanted: bigint, host: HostInfo, restrict: boolean): number {
  if (wanted < -1000n || wanted > 1000n) {
    throw new CriError("INVALID_ARGUMENT", `oom_score_adj ${wanted} is outside -1000–1000`);
  }
  const value = Number(wanted);
  return restrict ? Math.max(value, host.oomScoreAdj) : value;
}

/**
 * The oom_score_adj that an update can set: an update is not refused for what the kernel forbids.
 * @throws CriError INVALID_ARGUMENT outside −1000–1000.
 */
export function possibleOomScoreAdj(wanted: bigint, host: HostInfo, restrict: boolean): number {
  const mayLower = host.capabilities.includes("CAP_SYS_RESOURCE");
  return oomScoreAdj(wanted, host, restrict || !mayLower);
}

/** The resources without a swap limit that this host does not hold; undefined: there is none. */
export function withoutSwapLimit(
  resources: LinuxContainerResources | null | undefined,
  host: HostInfo,
): LinuxContainerResources | undefined {
  if (host.swapLimit || toBigInt(resources?.memory_swap_limit_in_bytes) === 0n) return undefined;
  return { ...resources, memory_swap_limit_in_bytes: toLong(0n) };
}

function cpuResources(resources: LinuxContainerResources): OciResources["cpu"] {
  const cpu: NonNullable<OciResources["cpu"]> = {};
  const shares = toBigInt(resources.cpu_shares);
  const quota = toBigInt(resources.cpu_quota);
  const period = toBigInt(resources.cpu_period);
  if (shares < 0n || period < 0n) {
    throw new CriError("INVALID_ARGUMENT", "cpu_shares and cpu_period cannot be negative");
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
    throw new CriError(
      "INVALID_ARGUMENT",
      `memory_swap_limit_in_bytes ${swap} counts memory too and is below memory_limit_in_bytes ${limit}`,
    );
  }
  // Without a word about swap a memory limit means just that; the kernel's default would be
  // unlimited swap on top. No limit (-1) is none of either.
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
    const pageSize = (page_size ?? "").replace(/i?B$/, "") + "B";
    const bytes = toBigInt(limit);
    if (host.hugepageSizes.includes(pageSize)) {
      result.push({ pageSize, limit: bytes });
    } else if (bytes !== 0n) {
      // The kubelet sends a limit of 0 for every size it knows; only a real one can be missed.
      throw new CriError(
        "FAILED_PRECONDITION",
        `hugepage limit of ${bytes} bytes for page size "${page_size}": the hugetlb controller here knows ${host.hugepageSizes.join(", ") || "none (it is not mounted)"}`,
      );
    }
  }
  return result;
}
