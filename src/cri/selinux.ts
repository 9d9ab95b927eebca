// Assigns SELinux labels to new pods and containers, and to the files that they use (spec/selinux.ts).
import { CriError } from "../base/errors.ts";
import { checkLabel, relabel } from "../node/selinux.ts";
import type { ContainerConfig, PodSandboxConfig, SELinuxOption } from "../proto/types.ts";
import { guestTraits } from "../shim/guests.ts";
import { namespaceOptions } from "../spec/namespace_options.ts";
import type { ResolvedInputs } from "../spec/spec_inputs.ts";
import {
  requestsLabels,
  containerLabels,
  guestLabels,
  levelOf,
  podLabels,
  unusedLevel,
  type SelinuxLabels,
  type SelinuxPolicy,
} from "../spec/selinux.ts";
import type { Container } from "../state/container.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import { filesOfPod, type Call, type Context } from "./context.ts";

/**
 * Labels of a new pod; undefined where labels are off.
 * @throws CriError INVALID_ARGUMENT for a label that the policy does not know, FAILED_PRECONDITION for a
 * requested label where labels are off.
 */
export function newPodLabels(
  context: Context,
  { linux }: PodSandboxConfig,
): SelinuxLabels | undefined {
  const requested = linux?.security_context?.selinux_options;
  const policy = policyFor(context, requested);
  if (policy === undefined) return undefined;
  const range = { count: context.config.selinuxCategoryRange, random: Math.random };
  const newLevel = () => unusedLevel(takenLevels(context), range);
  return checked(requested, podLabels(requested, { policy, newLevel }));
}

/** Labels of a new container: its pod's, except for the parts that it requests itself. */
export function newContainerLabels(
  context: Context,
  sandbox: Sandbox,
  { linux }: ContainerConfig,
): SelinuxLabels | undefined {
  const requested = linux?.security_context?.selinux_options;
  if (policyFor(context, requested) === undefined) return undefined;
  // A pod that was created while labels were off has no labels.
  const pod = sandbox.selinux ?? newPodLabels(context, sandbox.config);
  return pod && checked(requested, containerLabels(requested, pod));
}

/**
 * Labels for a spec: those on record, except where the handler's guest has its own. subject: the guest itself, or
 * a container in it.
 */
export function handlerLabels(
  { handlers }: Context,
  { runtimeHandler, selinux }: Sandbox | Container,
  subject: "guest" | "container",
): SelinuxLabels | undefined {
  const handler = handlers.get(runtimeHandler);
  if (selinux === undefined || handler === undefined || !isInGuest(handler)) return selinux;
  const { selinux: kind } = guestTraits(handler.command.shim!);
  return guestLabels(selinux, kind === "kvm" && subject === "container" ? "container" : kind);
}

/** Reserves the pod's level until its record is listed. */
export function holdLevel({ levels }: Context, { selinux }: Sandbox): Disposable {
  const level = levelOf(selinux?.process ?? "");
  levels.add(level);
  return {
    [Symbol.dispose]: () => {
      levels.delete(level);
    },
  };
}

/**
 * Labels the pod's files, the container's volumes, and its mounts with selinux_relabel.
 * @throws CriError INVALID_ARGUMENT for a mount of a system folder, DEADLINE_EXCEEDED.
 */
export async function labelFiles(
  context: Context,
  { sandboxId, config, selinux }: Container,
  { mounts, volumes = [], call }: Pick<ResolvedInputs, "mounts" | "volumes"> & { call: Call },
): Promise<void> {
  if (selinux === undefined) return;
  const sandbox = context.sandboxes.get(sandboxId);
  const hostIpc = namespaceOptions(sandbox.config).ipc === "node";
  const { shm, ...files } = filesOfPod(context, sandbox);
  const relabelled = mounts.filter((_, index) => {
    const { selinux_relabel, image } = config.mounts![index]!;
    return selinux_relabel === true && !image; // an image volume is labelled by a mount option
  });
  const sources = [...volumes, ...relabelled].map(({ source }) => source);
  const paths = [...Object.values(files), ...sources, ...(hostIpc ? [] : [shm])];
  await relabel(paths, selinux.mount, call.signal);
}

/**
 * On a node without SELinux the options are ignored, as in every other runtime. On a node with SELinux a pod
 * that requests a label must not run unlabelled.
 */
function policyFor(
  { host }: Context,
  requested: SELinuxOption | null | undefined,
): SelinuxPolicy | undefined {
  const { selinux } = host;
  const areOff = selinux !== undefined && selinux.policy === undefined;
  if (!areOff || !requestsLabels(requested)) return selinux?.policy;
  const { user, role, type, level } = requested!;
  const label = [user, role, type, level].map((part) => part || "-").join(":");
  throw new CriError(
    "FAILED_PRECONDITION",
    `selinux_options ${label}: labels are off on this node (set selinux-enabled in daemon.json)`,
  );
}

function checked(
  requested: SELinuxOption | null | undefined,
  labels: SelinuxLabels,
): SelinuxLabels {
  if (requestsLabels(requested))
    for (const label of [labels.process, labels.mount]) checkLabel(label);
  return labels;
}

function takenLevels({ sandboxes, containers, levels }: Context): Set<string> {
  const taken = new Set(levels);
  for (const { selinux } of [...sandboxes.list(), ...containers.list()]) {
    if (selinux !== undefined) taken.add(levelOf(selinux.process));
  }
  return taken;
}
