// Drops requested limits that this host cannot apply, or is not to apply, and logs each; ContainerStatus omits
// them too.
import type { Config } from "../base/config.ts";
import { toBigInt } from "../base/int64.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import { withoutHugepageLimits, withoutSwapLimit } from "../spec/resources.ts";
import type { Context } from "./context.ts";

type Node = Pick<Context, "host"> & {
  config: Pick<Config, "disableHugetlbController" | "tolerateMissingHugetlbController">;
};

/**
 * Returns `requested` without its swap limit if the kernel does not account swap, and without limits of huge pages if
 * these are to be ignored.
 */
export function supportedResources<Requested extends LinuxContainerResources | null | undefined>(
  node: Node & Pick<Context, "log">,
  container: string,
  requested: Requested,
): Requested | LinuxContainerResources {
  const { host, log } = node;
  const kept = supportedHugepages(node, requested);
  const limits = kept === requested ? [] : (requested?.hugepage_limits ?? []);
  if (limits.some(({ limit }) => toBigInt(limit) !== 0n)) {
    const why = "this host has no hugetlb controller, or disable-hugetlb-controller is set";
    log.warn("hugepage_limits are ignored", { container, why });
  }
  const supported = withoutSwapLimit(kept, host);
  if (supported === undefined) return kept;
  const bytes = String(requested?.memory_swap_limit_in_bytes);
  const why = "this host does not account swap (swapaccount=1 on its command line)";
  log.warn("memory_swap_limit_in_bytes is ignored", { container, bytes, why });
  return supported;
}

/** Returns `requested` without limits of huge pages if these are to be ignored. */
export function supportedHugepages<Requested extends LinuxContainerResources | null | undefined>(
  { host, config }: Node,
  requested: Requested,
): Requested | LinuxContainerResources {
  const isMissing = host.hugepageSizes.length === 0;
  const isIgnored =
    config.disableHugetlbController || (config.tolerateMissingHugetlbController && isMissing);
  return (isIgnored ? withoutHugepageLimits(requested) : undefined) ?? requested;
}
