// Runs pause containers: the first process of the pid namespace that a pod's containers share, or the sandbox
// container that makes a pod's guest. Other pods have no pause container. Its program is built in, unless
// pod-sandbox-image is set.
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { isReadOnlyDisk, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { isRootMounted } from "../layer/rootfs.ts";
import { lookupContainer } from "../node/container_lookup.ts";
import { makePauseRootfs, pauseImage } from "../node/pause_rootfs.ts";
import { podHostname } from "../node/pod_files.ts";
import { relabel } from "../node/selinux.ts";
import type { ImageProcess } from "../spec/spec_inputs.ts";
import { ociJson, sandboxSpec } from "../spec/oci.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import { allowGroupTraversal } from "../sys/group_access.ts";
import { podSpecFile } from "./bundle.ts";
import { hasCgroup } from "./cgroups.ts";
import { stdioFolder, type Context } from "./context.ts";
import { pauseRequest } from "./monitor_requests.ts";
import { removeFromRuntime } from "./monitor_retry.ts";
import { rootfsOwner } from "./rootfs_owner.ts";
import { handlerOf } from "./runtime_handlers.ts";
import { handlerLabels } from "./selinux.ts";
import { configuredSandbox, containerDefaults, sandboxInfo, sysctlsOf } from "./spec_inputs.ts";
import { removeTree } from "../sys/remove_tree.ts";

/** Starts a pod's pause container, which has the id of its sandbox; returns its pid. */
export async function startPause(
  context: Context,
  plain: Sandbox,
  signal: AbortSignal,
): Promise<number> {
  const sandbox = configuredSandbox(context, plain);
  const { id, config } = sandbox;
  const { rootfsPath, image } = await makePauseRoot(context, sandbox, signal);
  const { seccomp, seccomp_profile_path, apparmor } = config.linux?.security_context ?? {};
  const security_context = { seccomp, seccomp_profile_path, apparmor };
  const { defaultProfile } = context.host.apparmor ?? {};
  const options = { rootfsPath, defaultProfile, signal };
  const { command, rules } = handlerOf(context, sandbox);
  const imageName = context.config.podSandboxImage;
  const spec = sandboxSpec({
    sandbox: sandboxInfo(context, sandbox),
    image,
    resolved: await lookupContainer({ linux: { security_context } }, options),
    host: context.host,
    handler: rules,
    defaults: containerDefaults(context),
    cgroupsPath: context.cgroup.containerCgroupsPath(sandbox.cgroup.parent, id, id),
    rootfsPath,
    hostname: podHostname(config),
    runtimeAnnotations: await context.cgroup.containerAnnotations(signal),
    selinux: handlerLabels(context, sandbox, "guest"),
    ...(isInGuest(sandbox) ? { guest: { sysctls: sysctlsOf(context, sandbox), imageName } } : {}),
  });
  await writeFile(podSpecFile(context, id), ociJson(spec), { mode: 0o600 });
  const request = pauseRequest(context, sandbox, command);
  const { result } = await step("pause-start", () => context.monitor.call("start", request));
  return result.pid;
}

/** Makes the root file system of a pause container and labels it; exported for its test, too. */
export async function makePauseRoot(
  context: Context,
  sandbox: Sandbox,
  signal: AbortSignal,
): Promise<{ rootfsPath: string; image: ImageProcess }> {
  const { images, config } = context;
  const reference = config.podSandboxImage;
  const dir = context.sandboxes.folderOf(sandbox.id);
  const owner = rootfsOwner(sandbox);
  if (reference === "") {
    if (owner !== undefined) allowGroupTraversal(dir, owner.gid);
    const rootfsPath = await step("pause-rootfs", () => makePauseRootfs(join(dir, "rootfs")));
    // Not the label of files that all containers may read: Debian's policy lets none of these be a first process.
    const label = sandbox.selinux?.mount;
    if (label !== undefined) await relabel([rootfsPath], label, signal);
    return { rootfsPath, image: pauseImage };
  }
  const image = images.find(reference) ?? (await images.pull(reference, { signal }));
  const options = { dir, owner, label: sandbox.selinux?.mount, signal };
  const rootfsPath = await step("pause-rootfs", () => images.mountRootfs(image, options));
  return { rootfsPath, image: image.config };
}

/** Kills a pause container and unmounts its root file system. Idempotent. */
export async function removePause(context: Context, sandbox: Sandbox): Promise<void> {
  const { id, cgroup } = sandbox;
  const paths = hasCgroup(context, sandbox)
    ? context.cgroup.containerPaths(cgroup.parent, id, id)
    : {};
  await removeFromRuntime(context, sandbox, paths);
  await removeTree(stdioFolder(context, id));
  const folder = context.sandboxes.folderOf(id);
  try {
    await context.images.unmountRootfs(folder);
  } catch (error) {
    // It is unmounted before anything is removed; the rest goes with the sandbox's folder.
    if (!isReadOnlyDisk(error) || isRootMounted(folder)) throw error;
    context.log.warn("files of a pause container stay", { sandbox: id, error: messageOf(error) });
  }
}
