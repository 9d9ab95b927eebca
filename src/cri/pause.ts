// The pause container: the first process of a pid namespace that a pod shares. It runs only in pods
// that ask for one, from the program that is built in, or from pod-sandbox-image where that is set.
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { step } from "../base/failpoints.ts";
import type { StartRequest } from "../monitor/protocol.ts";
import { lookupContainer } from "../node/container_lookup.ts";
import { makePauseRootfs, pauseImage } from "../node/pause_rootfs.ts";
import { podHostname } from "../node/pod_files.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import { relabel } from "../node/selinux.ts";
import type { ImageProcess } from "../spec/spec_inputs.ts";
import { ociJson, sandboxSpec } from "../spec/oci.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { allowGroupTraversal } from "../sys/group_access.ts";
import { forget } from "./monitor_retry.ts";
import { handlerOf, type Context } from "./context.ts";
import { containerDefaults, hasCgroup, rootfsOwner, sandboxInfo } from "./facts.ts";

/** Starts it under the sandbox's id; returns its pid. */
export async function startPause(
  context: Context,
  sandbox: Sandbox,
  signal: AbortSignal,
): Promise<number> {
  const { id, config } = sandbox;
  const folder = context.sandboxes.folderOf(id);
  const { rootfsPath, image } = await makeRootfs(context, sandbox, signal);
  const hostNetwork = sandbox.networkMode === "host";
  const { seccomp, seccomp_profile_path, apparmor } = config.linux?.security_context ?? {};
  const security_context = { seccomp, seccomp_profile_path, apparmor };
  const { command, rules } = handlerOf(context, sandbox.runtimeHandler);
  const spec = sandboxSpec({
    sandbox: sandboxInfo(context, sandbox),
    image,
    resolved: await lookupContainer({ linux: { security_context } }, { rootfsPath, signal }),
    host: context.host,
    handler: rules,
    defaults: containerDefaults(context),
    cgroupsPath: context.cgroup.containerCgroupsPath(sandbox.cgroup.parent, id, id),
    rootfsPath,
    hostname: podHostname(config, hostNetwork),
    runtimeAnnotations: context.cgroup.containerAnnotations(),
    selinux: sandbox.selinux,
  });
  await writeFile(join(folder, "config.json"), ociJson(spec), { mode: 0o600 });
  const request = pauseRequest(context, sandbox, command);
  const { result } = await step("pause-start", () => context.monitor.call("start", request));
  return result.pid;
}

/** What the monitor is told of it. */
export function pauseRequest(
  context: Context,
  { id, selinux, cgroup }: Sandbox,
  command: RuntimeCommand,
): StartRequest {
  return {
    id,
    runtime: command,
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

async function makeRootfs(
  context: Context,
  sandbox: Sandbox,
  signal: AbortSignal,
): Promise<{ rootfsPath: string; image: ImageProcess }> {
  const { images, config } = context;
  const reference = config.podSandboxImage;
  if (reference === "") {
    const folder = context.sandboxes.folderOf(sandbox.id);
    const owner = rootfsOwner(sandbox);
    if (owner !== undefined) allowGroupTraversal(folder, owner.gid);
    const rootfsPath = await step("pause-rootfs", () => makePauseRootfs(join(folder, "rootfs")));
    const policy = context.host.selinux?.policy;
    if (policy !== undefined) await relabel([rootfsPath], policy.readonlyFile, signal);
    return { rootfsPath, image: pauseImage };
  }
  const image = images.find(reference) ?? (await images.pull(reference, { signal }));
  const label = sandbox.selinux?.mount;
  const place = {
    dir: context.sandboxes.folderOf(sandbox.id),
    owner: rootfsOwner(sandbox),
    label,
    signal,
  };
  const rootfsPath = await step("pause-rootfs", () => images.mountRootfs(image, place));
  return { rootfsPath, image: image.config };
}

/** Kills it and takes its file system away; again and again if need be. */
export async function removePause(context: Context, sandbox: Sandbox): Promise<void> {
  const { id, cgroup } = sandbox;
  const isHere = hasCgroup(context, sandbox);
  const paths = isHere ? context.cgroup.containerPaths(cgroup.parent, id, id) : {};
  await forget(context, sandbox, paths);
  await rm(stdioFolder(context, id), { recursive: true, force: true });
  await context.images.unmountRootfs(context.sandboxes.folderOf(id));
}

/** Where the FIFOs of a container's streams are, for this boot. */
export function stdioFolder(context: Context, id: string): string {
  return join(context.config.state, "stdio", id);
}
