// Drops the limits of a CRI request that this host cannot hold, and logs each; the status leaves them out.
import type { LinuxContainerResources } from "../proto/types.ts";
import { withoutSwapLimit } from "../spec/resources.ts";
import type { Context } from "./context.ts";

/** Without a swap limit where swap is not accounted: ContainerStatus then has none either. */
export function heldResources<Asked extends LinuxContainerResources | null | undefined>(
  { host, log }: Context,
  container: string,
  asked: Asked,
): Asked | LinuxContainerResources {
  const held = withoutSwapLimit(asked, host);
  if (held === undefined) return asked;
  const bytes = String(asked?.memory_swap_limit_in_bytes);
  const why = "this host does not account swap (swapaccount=1 on its command line)";
  log.warn("memory_swap_limit_in_bytes is not set", { container, bytes, why });
  return held;
}
