// SELinux labels, `user:role:type:level`: what a pod's and a container's processes run as, and what
// their files have. Of those that differ in their level's categories alone none can touch another's.
import { CriError } from "../base/errors.ts";
import type { SELinuxOption } from "../proto/types.ts";

/** Labels of the loaded policy: of containers' processes, their files, and files that all may read. */
export type SelinuxPolicy = { process: string; file: string; readonlyFile: string };

/** Of one pod's or container's processes, and of what is mounted for them. */
export type SelinuxLabels = { process: string; mount: string };

type Context = { user: string; role: string; type: string; level: string };
type Asked = Pick<SELinuxOption, "user" | "role" | "type" | "level">;

const categories = "c\\d{1,4}(\\.c\\d{1,4})?";
const oneLevel = `s\\d{1,4}(:${categories}(,${categories})*)?`;
/** One level, or a lowest and a highest: "s0:c1,c5", "s0-s0:c0.c1023". */
export const levelPattern = new RegExp(`^${oneLevel}(-${oneLevel})?$`);

/** How many categories a policy has; the last two are left to what nobody may touch, as elsewhere. */
const categoriesMax = 1_022;
const triesMax = 1_000;

/**
 * The labels of a pod that asks for these options, of one that asks for none with newLevel().
 * A policy without levels gets none.
 */
export function podLabels(
  asked: Asked | null | undefined,
  { policy, newLevel }: { policy: SelinuxPolicy; newLevel: () => string },
): SelinuxLabels {
  const base = { process: policy.process, mount: policy.file };
  if (asked?.level || parse(base.process).level === "") return containerLabels(asked, base);
  return containerLabels({ ...asked, level: newLevel() }, base);
}

/** What a container does not ask for is its pod's: so it can share the pod's files. */
export function containerLabels(
  asked: Asked | null | undefined,
  pod: SelinuxLabels,
): SelinuxLabels {
  const [process, mount] = [parse(pod.process), parse(pod.mount)];
  const { user, role, type, level } = asked ?? {};
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

export function asksForLabels(asked: Asked | null | undefined): boolean {
  return Boolean(asked?.user || asked?.role || asked?.type || asked?.level);
}

/** "" for a label without one. */
export function levelOf(label: string): string {
  return parse(label).level;
}

/**
 * A pair of categories that no other has.
 * @param random 0 to below 1.
 * @throws CriError RESOURCE_EXHAUSTED
 */
export function unusedLevel(taken: ReadonlySet<string>, random: () => number): string {
  const pick = () => Math.floor(random() * categoriesMax);
  for (let tries = 0; tries < triesMax; tries++) {
    const [one, other] = [pick(), pick()];
    const level = `s0:c${Math.min(one, other)},c${Math.max(one, other)}`;
    if (one !== other && !taken.has(level)) return level;
  }
  throw new CriError(
    "RESOURCE_EXHAUSTED",
    `no SELinux level is left for another pod: ${taken.size} are taken (remove pods, or give selinux_options.level)`,
  );
}

/**
 * The contexts file of a policy (container-selinux): lines `process = "system_u:…:s0"`.
 * @returns undefined where it lacks the label of processes or of files.
 */
export function parsePolicy(contexts: string): SelinuxPolicy | undefined {
  const labels = new Map<string, string>();
  for (const line of contexts.split("\n")) {
    const [, key, label] = /^\s*(\w+)\s*=\s*"?([^"\s]+)"?\s*$/.exec(line) ?? [];
    if (key !== undefined && isLabel(label!)) labels.set(key, label!);
  }
  const [process, file] = [labels.get("process"), labels.get("file")];
  if (process === undefined || file === undefined) return undefined;
  return { process, file, readonlyFile: labels.get("ro_file") ?? file };
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
