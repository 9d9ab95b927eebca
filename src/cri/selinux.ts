// SELinux labels (spec/selinux.ts): chosen when a pod or container is made, kept in its record, and
// given to the files that it is to use.
import { CriError } from "../base/errors.ts";
import { podFiles } from "../node/pod_files.ts";
import { checkLabel, relabel } from "../node/selinux.ts";
import type { ContainerConfig, PodSandboxConfig, SELinuxOption } from "../proto/types.ts";
import type { ResolvedInputs } from "../spec/spec_inputs.ts";
import {
  requestsLabels,
  containerLabels,
  levelOf,
  podLabels,
  unusedLevel,
  type SelinuxLabels,
  type SelinuxPolicy,
} from "../spec/selinux.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { podFolder, type Call, type Context } from "./context.ts";

/**
 * A new pod's labels, or undefined where nothing is labelled.
 * @throws CriError INVALID_ARGUMENT for a label that the policy does not have, FAILED_PRECONDITION
 * for one that is asked for where labels are off.
 */
export function newPodLabels(
  context: Context,
  { linux }: PodSandboxConfig,
): SelinuxLabels | undefined {
  const asked = linux?.security_context?.selinux_options;
  const policy = policyFor(context, asked);
  if (policy === undefined) return undefined;
  const newLevel = () => unusedLevel(takenLevels(context), Math.random);
  return known(asked, podLabels(asked, { policy, newLevel }));
}

/** The same for a container; what it does not ask for is its pod's. */
export function newContainerLabels(
  context: Context,
  sandbox: Sandbox,
  { linux }: ContainerConfig,
): SelinuxLabels | undefined {
  const asked = linux?.security_context?.selinux_options;
  if (policyFor(context, asked) === undefined) return undefined;
  // A pod that was made while labels were off has none.
  const pod = sandbox.selinux ?? newPodLabels(context, sandbox.config);
  return pod && known(asked, containerLabels(asked, pod));
}

/** Nobody gets its level while its record is not listed. */
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
 * Labels what the container is to use of the pod's files, its volumes, and the mounts that want it.
 * @throws CriError INVALID_ARGUMENT for a mount of a system's folder, DEADLINE_EXCEEDED.
 */
export async function labelFiles(
  context: Context,
  { sandboxId, config, selinux }: Container,
  { mounts, volumes = [], call }: Pick<ResolvedInputs, "mounts" | "volumes"> & { call: Call },
): Promise<void> {
  if (selinux === undefined) return;
  const sandbox = context.sandboxes.get(sandboxId);
  const hostIpc = sandbox.namespaces.ipc === undefined;
  const { shm, ...files } = podFiles(podFolder(context, sandboxId), hostIpc);
  const wanting = mounts.filter((_, index) => {
    const { selinux_relabel: wanted, image } = config.mounts![index]!;
    return wanted === true && !image; // an image's files have the label by their mount
  });
  const paths = [...Object.values(files), ...[...volumes, ...wanting].map(({ source }) => source)];
  if (!hostIpc) paths.push(shm);
  await relabel(paths, selinux.mount, call.signal);
}

/**
 * On a node without SELinux the options count for nothing, as with every other runtime: pods carry
 * them for all nodes. On one that has it, who asks for a label must not run without.
 */
function policyFor(
  { host }: Context,
  asked: SELinuxOption | null | undefined,
): SelinuxPolicy | undefined {
  if (host.selinux === undefined || host.selinux.policy !== undefined || !requestsLabels(asked)) {
    return host.selinux?.policy;
  }
  const { user, role, type, level } = asked!;
  const label = [user, role, type, level].map((part) => part || "-").join(":");
  throw new CriError(
    "FAILED_PRECONDITION",
    `selinux_options ${label}: labels are off on this node (set selinux-enabled in daemon.json)`,
  );
}

function known(asked: SELinuxOption | null | undefined, labels: SelinuxLabels): SelinuxLabels {
  if (requestsLabels(asked)) [labels.process, labels.mount].forEach((label) => checkLabel(label));
  return labels;
}

function takenLevels({ sandboxes, containers, levels }: Context): Set<string> {
  const taken = new Set(levels);
  for (const { selinux } of [...sandboxes.list(), ...containers.list()]) {
    if (selinux !== undefined) taken.add(levelOf(selinux.process));
  }
  return taken;
}
