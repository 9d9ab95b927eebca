// Probes the host for what the spec generator needs to know: cgroups, capabilities, page sizes, architecture.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { arch } from "node:os";
import { join } from "node:path";
import { capabilityNames } from "../spec/capabilities.ts";
import type { HostInfo } from "../spec/spec_inputs.ts";
import { kernelIsAtLeast } from "../sys/kernel_version.ts";
import { ownSoftBeforeEngine } from "../sys/open_files_limit.ts";
import { readMountTable, type MountEntry } from "../sys/mount_table.ts";
import { absentControllers, type CgroupMounts } from "./cgroup.ts";

/** Reads the properties of the host that do not change while the daemon runs. */
export function readHostInfo(
  cgroups: CgroupMounts,
  { apparmor, selinux }: Pick<HostInfo, "apparmor" | "selinux">,
): HostInfo {
  const status = readFileSync("/proc/self/status", "utf8");
  const bounding = BigInt(`0x${/^CapBnd:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? "0"}`);
  return {
    cgroupVersion: cgroups.version,
    cgroupOptions: readCgroupOptions(cgroups),
    hugepageSizes: readHugepageSizes(cgroups),
    swapLimit: hasSwapLimit(cgroups),
    capabilities: capabilityNames.filter((_name, bit) => (bounding >> BigInt(bit)) & 1n),
    oomScoreAdj: Number(readFileSync("/proc/self/oom_score_adj", "utf8")),
    absentControllers: absentControllers(cgroups),
    openFilesSoft: ownSoftBeforeEngine(),
    apparmor,
    idmappedLayers: kernelIsAtLeast(5, 19),
    selinux,
    arch: arch(),
  };
}

function readHugepageSizes(cgroups: CgroupMounts): string[] {
  const isLimited = !absentControllers(cgroups).includes("hugetlb");
  if (!isLimited || !existsSync("/sys/kernel/mm/hugepages")) return [];
  return readdirSync("/sys/kernel/mm/hugepages").map((name) => {
    const kib = Number(/^hugepages-(\d+)kB$/.exec(name)?.[1]);
    if (kib >= 1 << 20) return `${kib / (1 << 20)}GB`;
    return kib >= 1 << 10 ? `${kib / (1 << 10)}MB` : `${kib}KB`;
  });
}

function readCgroupOptions({ version, roots }: CgroupMounts): string[] {
  if (version === 1) return [];
  const isRoot = ({ type, point }: MountEntry) => type === "cgroup2" && point === roots["unified"];
  const options = readMountTable().find(isRoot)?.options.split(",") ?? [];
  return options.filter((option) => ["nsdelegate", "memory_recursiveprot"].includes(option));
}

/**
 * True if swap can be limited, which needs swap accounting in both versions of cgroups. Without it (swapaccount=0,
 * ignored since Linux 6.1) v2 has no memory.swap.max, and runtimes fail to write it. v2's root cgroup never has limits,
 * so the files of its children are looked for.
 */
function hasSwapLimit({ version, roots }: CgroupMounts): boolean {
  if (version === 1) return existsSync(join(roots["memory"] ?? "", "memory.memsw.limit_in_bytes"));
  const root = roots["unified"] ?? "";
  const children = readdirSync(root, { withFileTypes: true }).filter((one) => one.isDirectory());
  const folders = [root, ...children.map(({ name }) => join(root, name))];
  const limited = folders.filter((folder) => existsSync(join(folder, "memory.max")));
  if (limited.length === 0) return existsSync("/proc/swaps");
  return limited.some((folder) => existsSync(join(folder, "memory.swap.max")));
}
