// Drops requested limits that this host cannot apply, and logs each; ContainerStatus omits them too.
import type { LinuxContainerResources } from "../proto/types.ts";
import { withoutSwapLimit } from "../spec/resources.ts";
import type { Context } from "./context.ts";

/** `requested` without its swap limit, if the kernel does not account swap. */
export function supportedResources<Requested extends LinuxContainerResources | null | undefined>(
  { host, log }: Pick<Context, "host" | "log">,
  container: string,
  requested: Requested,
): Requested | LinuxContainerResources {
  const supported = withoutSwapLimit(requested, host);
  if (supported === undefined) return requested;
  const bytes = String(requested?.memory_swap_limit_in_bytes);
  const why = "this host does not account swap (swapaccount=1 on its command line)";
  log.warn("memory_swap_limit_in_bytes is ignored", { container, bytes, why });
  return supported;
}
