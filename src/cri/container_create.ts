// CreateContainer: makes the bundle (root file system and config.json) and the record of a container.
import { writeFile } from "node:fs/promises";
import { throwIfAborted } from "../base/abort.ts";
import { messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import type { ImageRecord } from "../image/store.ts";
import { podHostname } from "../node/pod_files.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import { checkMounts } from "../spec/mounts.ts";
import { requireStartable, requireStartableRequest } from "../spec/arguments_size.ts";
import { containerSpec, type ContainerSpecInput, ociJson, type OciSpec } from "../spec/oci.ts";
import { checkGuestMounts } from "../spec/sandboxed.ts";
import { containerName, created, logPath, type Container } from "../state/container.ts";
import { createdAfter } from "../state/order.ts";
import { isInGuest, isSamePod, type Sandbox } from "../state/sandbox.ts";
import { softLimit } from "../sys/process.ts";
import { signalNumber } from "../sys/signals.ts";
import { withAnnotatedClasses } from "./annotated_classes.ts";
import { specFile } from "./bundle.ts";
import { newId, type Call, type Context } from "./context.ts";
import { getImage } from "./image_records.ts";
import { mountImageVolumes, unmountImages, withImageRefs } from "./image_volumes.ts";
import { containerFields } from "./log_subject.ts";
import { refuseWhileStarting } from "./preconditions.ts";
import { rootfsOwner } from "./rootfs_owner.ts";
import { getHandler, handlerOf } from "./runtime_handlers.ts";
import { containersOf, readySandbox } from "./sandbox_lookup.ts";
import { handlerLabels, newContainerLabels } from "./selinux.ts";
import {
  configuredContainer,
  containerDefaults,
  prepareContainerInputs,
  requireOwnPids,
  sandboxInfo,
  targetPid,
  withOpenFilesLimit,
} from "./spec_inputs.ts";
import type { MountedImages } from "./spec_inputs.ts";
import { systemdRules, type SystemdRules } from "./systemd_containers.ts";
import { supportedResources } from "./supported_resources.ts";

const { Signal } = runtime.v1;

export async function createContainer(
  context: Context,
  request: cri.CreateContainerRequest,
  call: Call,
): Promise<cri.CreateContainerResponse> {
  const config = request.config!;
  const sandbox = await readySandbox(context, request.pod_sandbox_id ?? "");
  const handler = handlerOf(context, sandbox);
  await handler.refresh();
  checkMounts(config.mounts ?? [], handler.support);
  if (isInGuest(handler)) checkGuestMounts(config.mounts ?? []);
  else if (handler.rules.baseSpec === undefined && context.nri === undefined) {
    // Nothing else can raise the limit of the stack: a large request is refused before it costs more.
    requireStartableRequest(config, context.config.defaultUlimits, ownStackBytes());
  }
  getHandler(context, config.image!.runtime_handler ?? "");
  const image = getImage(context, config.image!.image!);
  await context.health.requireWritableGraph();
  const name = containerName(config, sandbox.config);
  const id = await context.making.join(name, call.signal, async () => {
    const resolved = withImageRefs(context, config);
    const systemd = await systemdRules(context, { sandbox, config: resolved, image });
    const parts = { sandbox, requestedPod: request.sandbox_config, image, systemd };
    const container = newContainer(context, { ...parts, config: resolved, name });
    using _ = await context.nri?.enter(call.signal);
    // After the gate: an earlier attempt may have left the gate just before, and be starting now.
    refuseWhileStarting(containersOf(context, sandbox.id), config, context.starting);
    context.containers.reserve(name, container.id);
    await makeContainer(context, container, { ...parts, call });
    return container.id;
  });
  return { container_id: id };
}

function ownStackBytes(): number {
  return softLimit("self", "stack size") ?? Infinity;
}

/** systemd: for a container that runs it. */
type Parts = Pick<ContainerSpecInput, "requestedPod"> & {
  sandbox: Sandbox;
  image: ImageRecord;
  systemd: SystemdRules | undefined;
};

function newContainer(
  context: Context,
  { sandbox, config, image, name, systemd }: Parts & { config: cri.ContainerConfig; name: string },
): Container {
  const id = newId();
  const resources = supportedResources(context, id, config.linux?.resources);
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
    runtimeKind: sandbox.runtimeKind,
    createdAtNs: createdAfter(podContainers(context, sandbox)),
    cgroupDriver: context.cgroup.name,
    cgroupsPath: context.cgroup.containerCgroupsPath(sandbox.cgroup.parent, sandbox.id, id),
    bootId: context.bootId,
    logPath: logPath(config, sandbox.config),
    stopSignal: stopSignal(config, image, systemd?.stopSignal),
    user: { uid: 0, gid: 0, groups: [] },
    selinux: newContainerLabels(context, sandbox, config),
    phase: { phase: "creating" },
  };
}

/** Containers of all attempts of the pod: a kubelet compares their ages across attempts. */
function podContainers({ sandboxes, containers }: Context, sandbox: Sandbox): Container[] {
  const attempts = sandboxes.list().filter(({ config }) => isSamePod(config, sandbox.config));
  const ids = new Set(attempts.map(({ id }) => id));
  return containers.list().filter(({ sandboxId }) => ids.has(sandboxId));
}

/** The request's signal, else the image's, else the usual one. @throws CriError for an unknown name. */
export function stopSignal(
  config: cri.ContainerConfig,
  image: Pick<ImageRecord, "config">,
  usual = "SIGTERM",
): string {
  const requested = config.stop_signal ? Signal[config.stop_signal].replace(/^SIGNAL_/, "") : "";
  const name = requested || image.config.StopSignal || usual;
  signalNumber(name);
  return name;
}

async function makeContainer(
  context: Context,
  container: Container,
  { call, ...given }: Parts & { call: Call },
): Promise<void> {
  const { containers, images, log } = context;
  const { sandbox, image } = given;
  const folder = containers.folderOf(container.id);
  const name = `CreateContainer ${container.name}`;
  try {
    await step("container-record", () => containers.write(container));
    throwIfAborted(name, call.signal);
    const owner = rootfsOwner(sandbox);
    const options = { dir: folder, owner, label: container.selinux?.mount, signal: call.signal };
    const rootfsPath = await step("container-rootfs", () => images.mountRootfs(image, options));
    throwIfAborted(name, call.signal);
    const imageMounts = await mountImageVolumes(context, container, call.signal);
    const parts = { ...given, rootfsPath, imageMounts, call };
    const plain = { container, spec: await specOf(context, container, parts) };
    const classed = await withAnnotatedClasses(context, sandbox, plain);
    const adjusted = await context.nri?.createContainer(sandbox, classed.container, classed.spec);
    const { spec: decided, container: changed } = adjusted ?? classed;
    const spec = withOpenFilesLimit(context, container, decided);
    if (!isInGuest(container)) requireStartable(spec.process, ownStackBytes());
    await step("container-bundle", () =>
      writeFile(specFile(context, container.id), ociJson(spec), { mode: 0o600 }),
    );
    await adjusted?.keepChanges();
    // Stop and Remove of the sandbox see only listed containers: this one is listed before they begin, or it fails.
    using _ = await context.sandboxes.lock(sandbox.id, call.signal);
    await readySandbox(context, sandbox.id);
    throwIfAborted(name, call.signal);
    await step("container-created", () =>
      containers.put(created(changed, spec.process.user), { durable: true }),
    );
    context.nri?.createdContainer(containers.get(container.id), spec);
  } catch (error) {
    log.warn("CreateContainer failed", { container: container.id, error: messageOf(error) });
    await context.nri?.abandonedContainer(sandbox, container.id);
    await undoContainer(context, container);
    throw error;
  }
  const fields = containerFields(context, container);
  log.info("container created", { ...fields, image: container.image.name, sandbox: sandbox.id });
}

/** Rolls back CreateContainer; the next daemon retries what fails. */
export async function undoContainer(context: Context, container: Container): Promise<void> {
  const { containers, log } = context;
  try {
    await unmountImages(context, container.id);
    await containers.remove(container.id);
  } catch (error) {
    const fields = { container: container.id, error: messageOf(error) };
    log.error("rolling back CreateContainer failed, the next daemon retries", fields);
  }
  containers.release(container.name, container.id);
}

type SpecParts = MountedImages & Parts & { call: Call };

async function specOf(
  context: Context,
  container: Container,
  { sandbox, requestedPod, image, systemd, call, ...mounted }: SpecParts,
): Promise<OciSpec> {
  const configured = configuredContainer(context, container);
  const { config, id } = configured;
  const owner = rootfsOwner(sandbox);
  const handler = getHandler(context, container.runtimeHandler);
  const info = sandboxInfo(context, sandbox);
  requireOwnPids(info);
  const spec = containerSpec({
    id,
    config,
    sandbox: info,
    requestedPod,
    image: image.config,
    resolved: await prepareContainerInputs(context, configured, { ...mounted, image, owner, call }),
    host: context.host,
    runtime: handler.support,
    handler: handler.rules,
    defaults: containerDefaults(context),
    cgroupsPath: context.cgroup.containerCgroupsPath(sandbox.cgroup.parent, sandbox.id, id),
    rootfsPath: mounted.rootfsPath,
    hostname: podHostname(sandbox.config),
    targetPid: targetPid(context, container),
    runtimeAnnotations: await context.cgroup.containerAnnotations(call.signal),
    selinux: handlerLabels(context, container, "container"),
  });
  return systemd === undefined ? spec : systemd.apply(spec, id);
}
