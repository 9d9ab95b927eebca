// CreateContainer: image and config become a bundle (root file system and config.json) and a record.
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import type { ImageRecord } from "../image/store.ts";
import { podHostname } from "../node/pod_files.ts";
import { runtime } from "../proto/messages.js";
import type {
  ContainerConfig,
  CreateContainerRequest,
  CreateContainerResponse,
} from "../proto/types.ts";
import { checkMounts } from "../spec/mounts.ts";
import { containerSpec, ociJson, type OciSpec } from "../spec/oci.ts";
import { containerName, created, type Container } from "../state/container.ts";
import { createdAfter } from "../state/order.ts";
import { isSamePod, type Sandbox } from "../state/sandbox.ts";
import { signalNumber } from "../sys/signals.ts";
import { specFile } from "./bundle.ts";
import { handlerOf, newId, type Call, type Context } from "./context.ts";
import { containerFacts, type MountedImages } from "./container_facts.ts";
import { containerDefaults, rootfsOwner, sandboxInfo } from "./facts.ts";
import { heldResources } from "./held_resources.ts";
import { findImage, mountImageVolumes, unmountImages, withImageRefs } from "./image_volumes.ts";
import { checkSandbox, containersOf, unready } from "./sandbox.ts";
import { newContainerLabels } from "./selinux.ts";

const { NamespaceMode, Signal } = runtime.v1;

export async function createContainer(
  context: Context,
  request: CreateContainerRequest,
  call: Call,
): Promise<CreateContainerResponse> {
  const config = request.config!;
  const sandbox = await readySandbox(context, request.pod_sandbox_id ?? "");
  const handler = handlerOf(context, sandbox.runtimeHandler);
  await handler.refresh();
  checkMounts(config.mounts ?? [], handler.facts);
  handlerOf(context, config.image!.runtime_handler ?? "");
  const image = findImage(context, config.image!.image!);
  refuseBesideStart(context, sandbox.id, config);
  const name = containerName(config, sandbox.config);
  const id = await context.making.join(name, call.signal, async () => {
    const resolved = withImageRefs(context, config);
    const container = newContainer(context, { sandbox, config: resolved, image, name });
    using _ = await context.nri?.enter();
    context.containers.reserve(name, container.id);
    await makeContainer(context, container, { sandbox, image, call });
    return container.id;
  });
  return { container_id: id };
}

/**
 * A kubelet whose StartContainer was cut off, by its own deadline or by a restart of this daemon, sees the
 * container CREATED and creates another attempt; then both would run.
 * @throws CriError FAILED_PRECONDITION.
 */
function refuseBesideStart(
  context: Context,
  sandboxId: string,
  { metadata }: ContainerConfig,
): void {
  for (const { id, config } of containersOf(context, sandboxId)) {
    if (config.metadata?.name !== metadata?.name || !context.starting.has(id)) continue;
    throw new CriError(
      "FAILED_PRECONDITION",
      `container ${id} of the same name is being started: wait for the outcome, then try again`,
    );
  }
}

/** @throws CriError FAILED_PRECONDITION for a sandbox that is not ready. */
export async function readySandbox(context: Context, id: string): Promise<Sandbox> {
  const sandbox = await checkSandbox(context, context.sandboxes.get(id));
  if (sandbox.phase.phase === "ready") return sandbox;
  throw unready(sandbox);
}

type Parts = { sandbox: Sandbox; config: ContainerConfig; image: ImageRecord; name: string };

function newContainer(context: Context, { sandbox, config, image, name }: Parts): Container {
  const id = newId();
  const resources = heldResources(context, id, config.linux?.resources);
  return {
    version: 1,
    id,
    name,
    sandboxId: sandbox.id,
    config: { ...config, linux: { ...config.linux, resources } },
    image: {
      id: image.id,
      name: config.image!.user_specified_image || (image.repoTags[0] ?? config.image!.image!),
      ref: image.repoDigests[0] ?? image.id,
    },
    runtimeHandler: sandbox.runtimeHandler,
    createdAtNs: createdAfter(podContainers(context, sandbox)),
    cgroupDriver: context.cgroup.name,
    bootId: context.bootId,
    logPath: logPath(sandbox, config),
    stopSignal: stopSignal(config, image),
    user: { uid: 0, gid: 0, groups: [] },
    selinux: newContainerLabels(context, sandbox, config),
    phase: { phase: "creating" },
  };
}

/** Of all attempts of the pod: a kubelet compares the ages of containers over all of them. */
function podContainers({ sandboxes, containers }: Context, sandbox: Sandbox): Container[] {
  const attempts = sandboxes.list().filter(({ config }) => isSamePod(config, sandbox.config));
  const ids = new Set(attempts.map(({ id }) => id));
  return containers.list().filter(({ sandboxId }) => ids.has(sandboxId));
}

/** CRI: log_path is relative to the pod's log_directory; without either there is no log. */
function logPath(sandbox: Sandbox, config: ContainerConfig): string {
  const { log_directory: folder } = sandbox.config;
  return folder && config.log_path ? join(folder, config.log_path) : "";
}

/** CRI's own wins over the image's; SIGTERM without either. */
function stopSignal(config: ContainerConfig, image: ImageRecord): string {
  const asked = config.stop_signal ? Signal[config.stop_signal].replace(/^SIGNAL_/, "") : "";
  const name = asked || image.config.StopSignal || "SIGTERM";
  signalNumber(name);
  return name;
}

async function makeContainer(
  context: Context,
  container: Container,
  { sandbox, image, call }: { sandbox: Sandbox; image: ImageRecord; call: Call },
): Promise<void> {
  const { containers, images, log } = context;
  const folder = containers.folderOf(container.id);
  const label = container.selinux?.mount;
  const what = `CreateContainer ${container.name}`;
  try {
    await step("container-record", () => containers.write(container));
    throwIfAborted(what, call.signal);
    const rootfsPath = await step("container-rootfs", () =>
      images.mountRootfs(image, {
        dir: folder,
        owner: rootfsOwner(sandbox),
        label,
        signal: call.signal,
      }),
    );
    throwIfAborted(what, call.signal);
    const imageMounts = await mountImageVolumes(context, container, call.signal);
    const parts = { sandbox, image, rootfsPath, imageMounts, call };
    const plain = await specOf(context, container, parts);
    const adjusted = await context.nri?.createContainer(sandbox, container, plain);
    const { spec, container: made } = adjusted ?? { spec: plain, container };
    await step("container-bundle", () =>
      writeFile(specFile(context, container.id), ociJson(spec), { mode: 0o600 }),
    );
    // A Stop or Remove of the sandbox ends the containers that it finds: either this one is listed
    // by then, or it is not made.
    using _ = await context.sandboxes.lock(sandbox.id);
    await readySandbox(context, sandbox.id);
    throwIfAborted(what, call.signal);
    await step("container-created", () =>
      containers.put(created(made, spec.process.user), { durable: true }),
    );
    context.nri?.createdContainer(containers.get(container.id), spec);
  } catch (error) {
    log.warn("CreateContainer failed", { container: container.id, error: messageOf(error) });
    await context.nri?.containerGone(sandbox, container.id);
    await undoContainer(context, container);
    throw error;
  }
  log.info("container created", {
    container: container.id,
    name: container.name,
    sandbox: sandbox.id,
  });
}

/** What CreateContainer began goes; what cannot go now is undone at the next start. */
export async function undoContainer(context: Context, container: Container): Promise<void> {
  const { containers, log } = context;
  try {
    await unmountImages(context, container.id);
    await containers.remove(container.id);
  } catch (error) {
    const message = messageOf(error);
    log.error("CreateContainer was not undone", { container: container.id, error: message });
  }
  containers.release(container.name, container.id);
}

type SpecParts = MountedImages & { sandbox: Sandbox; image: ImageRecord; call: Call };

async function specOf(
  context: Context,
  container: Container,
  { sandbox, image, call, ...mounted }: SpecParts,
): Promise<OciSpec> {
  const { config, id } = container;
  const owner = rootfsOwner(sandbox);
  const handler = handlerOf(context, container.runtimeHandler);
  return containerSpec({
    id,
    config,
    sandbox: sandboxInfo(context, sandbox),
    image: image.config,
    resolved: await containerFacts(context, container, { ...mounted, image, owner, call }),
    host: context.host,
    runtime: handler.facts,
    handler: handler.rules,
    defaults: containerDefaults(context),
    cgroupsPath: context.cgroup.containerCgroupsPath(sandbox.cgroup.parent, sandbox.id, id),
    rootfsPath: mounted.rootfsPath,
    hostname: podHostname(sandbox.config, sandbox.networkMode === "host"),
    targetPid: targetPid(context, container),
    runtimeAnnotations: context.cgroup.containerAnnotations(),
    selinux: container.selinux,
  });
}

/**
 * For pid mode TARGET: the init of the target, a running container of the same pod.
 * @throws CriError FAILED_PRECONDITION when it does not run: its pid may be another program's by now.
 */
export function targetPid(context: Context, container: Container): number | undefined {
  const options = container.config.linux?.security_context?.namespace_options;
  if (options?.pid !== NamespaceMode.TARGET) return undefined;
  if (!options.target_id) {
    throw new CriError("INVALID_ARGUMENT", "namespace_options.target_id is missing: pid is TARGET");
  }
  const target = context.containers.get(options.target_id);
  if (target.sandboxId !== container.sandboxId) {
    throw new CriError("INVALID_ARGUMENT", `container ${target.id} is in another pod`);
  }
  if (target.phase.phase === "running") return target.phase.pid;
  throw new CriError(
    "FAILED_PRECONDITION",
    `pid mode TARGET: container ${target.id} is not running`,
  );
}
