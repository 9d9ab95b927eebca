// Determines who owns the root file systems of a pod's containers.
import type { RootfsOwner } from "../image/store.ts";
import { closedRootProblem } from "../layer/closed_root.ts";
import { namespaceOptions } from "../spec/namespace_options.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";

/** The root user of the pod's user namespace; undefined: the node's own users. */
export function rootfsOwner({ namespaces, config }: Sandbox): RootfsOwner | undefined {
  const { user } = namespaceOptions(config);
  if (user === undefined || namespaces.user === undefined) return undefined;
  const [uids, gids] = [user.uidMappings[0]!, user.gidMappings[0]!];
  return { userns: namespaces.user.path, uid: uids.hostID, gid: gids.hostID, count: uids.size };
}

/** Returns what closes the root file system to the container's user; "" if nothing does. */
export async function closedRootOf(
  { containers, sandboxes }: Context,
  { id, sandboxId, user }: Container,
): Promise<string> {
  const sandbox = sandboxes.find(sandboxId);
  return await closedRootProblem(containers.folderOf(id), user, sandbox && rootfsOwner(sandbox));
}
