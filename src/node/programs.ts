// Lists the programs that the daemon calls, besides OCI runtimes and CNI plugins, and finds those that are missing.
import type { Config } from "../base/config.ts";
import { isInPath } from "../base/config_host.ts";
import type { Log } from "../base/log.ts";

type Program = {
  /** One of them suffices. */
  names: readonly string[];
  /** Debian's package of the program; other distributions give it a similar name. */
  package: string;
  /** What fails without the program. */
  effect: string;
  /** No pod starts without the program. */
  isRequired?: true;
  isUsed?: (config: Config) => boolean;
};

const programs: readonly Program[] = [
  { names: ["sh"], package: "dash", effect: "pods do not start", isRequired: true },
  { names: ["unshare"], package: "util-linux", effect: "pods do not start", isRequired: true },
  { names: ["nsenter"], package: "util-linux", effect: "pods do not start", isRequired: true },
  {
    names: ["ip", "ifconfig", "busybox"],
    package: "iproute2",
    effect: "pods have no loopback, and do not start",
    isRequired: true,
  },
  {
    names: ["realpath"],
    package: "coreutils",
    effect: "containers with mounts are refused",
    isRequired: true,
  },
  { names: ["cp"], package: "coreutils", effect: "images with volumes make no containers" },
  { names: ["cat"], package: "coreutils", effect: "pods have no network statistics" },
  { names: ["du"], package: "coreutils", effect: "containers have no disk statistics" },
  { names: ["nice"], package: "coreutils", effect: "containers have no disk statistics" },
  { names: ["tar"], package: "tar", effect: "CheckpointContainer fails" },
  {
    names: ["iptables"],
    package: "iptables",
    effect: "CNI plugins such as portmap fail",
    isUsed: ({ networkPlugin }) => networkPlugin === "cni",
  },
  {
    names: ["systemctl"],
    package: "systemd",
    effect: "pods cannot be limited or removed",
    isRequired: true,
    isUsed: ({ systemdCgroup }) => systemdCgroup,
  },
  {
    names: ["chcon"],
    package: "coreutils",
    effect: "volumes cannot be labelled",
    isUsed: ({ selinuxEnabled }) => selinuxEnabled,
  },
];

export type MissingProgram = { isRequired: boolean; problem: string; mend: string };

/** isInstalled: whether a program is in a folder of the daemon's PATH. */
export function missingPrograms(
  config: Config,
  isInstalled: (name: string) => boolean,
): MissingProgram[] {
  const used = programs.filter(({ isUsed }) => isUsed === undefined || isUsed(config));
  const missing = used.filter(({ names }) => !names.some(isInstalled));
  return missing.map(({ names, effect, isRequired = false, ...rest }) => ({
    isRequired,
    problem: `${names.join(" or ")} is not installed: ${effect}`,
    mend: `install the package ${rest.package}`,
  }));
}

/** Logs what is missing on this node. */
export function reportPrograms(config: Config, log: Log): void {
  for (const { isRequired, problem, mend } of missingPrograms(config, (name) => isInPath(name))) {
    log[isRequired ? "error" : "warn"](problem, { mend });
  }
}
