// Builds the start requests of containers and pause containers for the monitor.
import type { StartRequest } from "../monitor/protocol.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { containerCgroup } from "./cgroups.ts";
import { stdioFolder, type Context } from "./context.ts";
import { rootfsOwner } from "./rootfs_owner.ts";

export function startRequest(
  context: Context,
  container: Container,
  { sandbox, runtime }: { sandbox: Sandbox | undefined; runtime: RuntimeCommand },
): StartRequest {
  const { id } = container;
  const owner = (sandbox && rootfsOwner(sandbox)) ?? runtime.streamOwner;
  return {
    id,
    runtime,
    bundle: context.containers.folderOf(id),
    stdio: stdioFolder(context, id),
    logPath: container.logPath,
    logLineBytes: context.config.maxContainerLogLineSize,
    logOnError: context.config.logOnError,
    logDropNote: context.config.logDropNote,
    stdin: container.config.stdin === true,
    terminal: container.config.tty === true,
    ...(owner === undefined ? {} : { owner: { uid: owner.uid, gid: owner.gid } }),
    label: container.selinux?.mount,
    cgroup: containerCgroup(context, container),
    timeoutMs: context.config.startTimeoutMs,
  };
}

/** A pause container goes by the id of its sandbox. */
export function pauseRequest(
  context: Context,
  { id, selinux, cgroup }: Sandbox,
  runtime: RuntimeCommand,
): StartRequest {
  return {
    id,
    runtime,
    bundle: context.sandboxes.folderOf(id),
    stdio: stdioFolder(context, id),
    logPath: "",
    stdin: false,
    terminal: false,
    label: selinux?.mount,
    cgroup: context.cgroup.containerPaths(cgroup.parent, id, id),
    timeoutMs: context.config.startTimeoutMs,
  };
}
