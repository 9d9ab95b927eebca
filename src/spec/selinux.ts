// Computes SELinux labels `user:role:type:level` of the processes and files of pods and containers. Labels
// that differ only in their level's categories cannot access each other's files and processes.
import { CriError } from "../base/errors.ts";
import type { SELinuxOption } from "../proto/types.ts";

/** The policy's labels for container processes and their files. */
export type SelinuxPolicy = { process: string; file: string };

/** Labels of a pod's or container's processes and mounts. */
export type SelinuxLabels = { process: string; mount: string };

type Context = { user: string; role: string; type: string; level: string };
type LabelOptions = Pick<SELinuxOption, "user" | "role" | "type" | "level">;

const categories = "c\\d{1,4}(\\.c\\d{1,4})?";
const oneLevel = `s\\d{1,4}(:${categories}(,${categories})*)?`;
/** A level or a range of levels: "s0:c1,c5", "s0-s0:c0.c1023". */
export const levelPattern = new RegExp(`^${oneLevel}(-${oneLevel})?$`);

const triesMax = 1_000;

/** Returns a pod's labels. A pod that requests no level gets newLevel(), unless the policy has no levels. */
export function podLabels(
  requested: LabelOptions | null | undefined,
  { policy, newLevel }: { policy: SelinuxPolicy; newLevel: () => string },
): SelinuxLabels {
  const base = { process: policy.process, mount: policy.file };
  if (requested?.level || parse(base.process).level === "") return containerLabels(requested, base);
  return containerLabels({ ...requested, level: newLevel() }, base);
}

/** Returns a container's labels; parts that it does not request are the pod's, so that it can share the pod's files. */
export function containerLabels(
  requested: LabelOptions | null | undefined,
  pod: SelinuxLabels,
): SelinuxLabels {
  const [process, mount] = [parse(pod.process), parse(pod.mount)];
  const { user, role, type, level } = requested ?? {};
  return {
    process: text({
      user: user || process.user,
      role: role || process.role,
      type: type || process.type,
      level: level || process.level,
    }),
    mount: text({ ...mount, user: user || mount.user, level: level || mount.level }),
  };
}

/** Returns the labels of a guest's process ("none": gVisor refuses one), or of a virtual machine's monitor. */
export function guestLabels(
  labels: SelinuxLabels | undefined,
  kind: "none" | "kvm" | "container",
): SelinuxLabels | undefined {
  if (labels === undefined || kind === "container") return labels;
  const { mount } = labels;
  if (kind === "none") return { process: "", mount };
  return { process: text({ ...parse(labels.process), type: "container_kvm_t" }), mount };
}

export function requestsLabels(requested: LabelOptions | null | undefined): boolean {
  return Boolean(requested?.user || requested?.role || requested?.type || requested?.level);
}

/** Returns the level; "" for a label without one. */
export function levelOf(label: string): string {
  return parse(label).level;
}

/**
 * Returns a level with an unused pair of the first `count` categories.
 * @param random 0 to below 1.
 * @throws CriError RESOURCE_EXHAUSTED
 */
export function unusedLevel(
  taken: ReadonlySet<string>,
  { count, random }: { count: number; random: () => number },
): string {
  const pick = () => Math.floor(random() * count);
  for (let tries = 0; tries < triesMax; tries++) {
    const [one, other] = [pick(), pick()];
    const level = `s0:c${Math.min(one, other)},c${Math.max(one, other)}`;
    if (one !== other && !taken.has(level)) return level;
  }
  throw new CriError(
    "RESOURCE_EXHAUSTED",
    `found no unused SELinux level for another pod: ${taken.size} are taken (remove pods, set selinux_options.level, or raise selinux-category-range)`,
  );
}

/**
 * Parses the contexts file of a policy (container-selinux): lines `process = "system_u:…:s0"`.
 * @returns undefined if it lacks the label of processes or of files.
 */
export function parsePolicy(contexts: string): SelinuxPolicy | undefined {
  const labels = new Map<string, string>();
  for (const line of contexts.split("\n")) {
    const [, key, label] = /^\s*(\w+)\s*=\s*"?([^"\s]+)"?\s*$/.exec(line) ?? [];
    if (key !== undefined && isLabel(label!)) labels.set(key, label!);
  }
  const [process, file] = [labels.get("process"), labels.get("file")];
  if (process === undefined || file === undefined) return undefined;
  return { process, file };
}

function isLabel(label: string): boolean {
  return /^[\w.-]+:[\w.-]+:[\w.-]+(:[\w.,:-]+)?$/.test(label);
}

function parse(label: string): Context {
  const [user = "", role = "", type = "", ...level] = label.split(":");
  return { user, role, type, level: level.join(":") };
}

function text({ user, role, type, level }: Context): string {
  return [user, role, type, ...(level === "" ? [] : [level])].join(":");
}
