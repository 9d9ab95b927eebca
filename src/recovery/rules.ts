// Reconciles records, monitor, OCI runtime and kernel: one row for each difference, with its rule and the
// function that applies it. Pure: the first row whose condition applies decides, and names the function.
// start.ts applies the tables …AtStart, monitor.ts those …AtGreeting and …AfterGreeting, and sweep.ts `orphans`, every
// minute.
//
// Differences within the files are settled before, where the files are read:
// - a graph folder that another program filled, or whose mark is lost: refused (folders.ts); one whose first
//   start was cut off: claimed
// - a record of a newer version: refused; an older one: migrated; a damaged one, or no file: set aside, or
//   passed over on a full disk; a folder before its first record: removed (state/store.ts)
// - a record left to be rolled back, whose name another one has by now: kept without the name (state/store.ts)
// - a record whose folder in the graph is lost, with its last change in `state`: a sandbox's is restored
//   as abandoned, a container's removed (state/store.ts)
// - pods and containers of this boot that the other cgroup driver made: refused (cgroup_driver.ts)
// - an unusable layer record: dropped with its images; its tree stays while mounted (layer/layer_store.ts)
// - a graph folder too full for trying overlayfs: the layers tell the storage driver (layer/storage_driver.ts)
// - unusable CNI attachments on record: CNI DEL takes the cached ones (node/cni.ts)
// - a tag of two images, its move cut off: the later pull wins (image/records.ts)
import type { ContainerPhase } from "../state/container.ts";
import type { SandboxPhase } from "../state/sandbox.ts";

export type Row<Facts> = { condition: string; applies: (facts: Facts) => boolean; rule: string };

/** Function name → row, the first that applies wins. */
type Table<Facts> = Record<string, Row<Facts>>;

/** Returns the first row that applies, the name of the function to call; undefined: there is no difference. */
export function decide<Facts, Rules extends Table<Facts>>(
  rules: Rules & Table<Facts>,
  facts: Facts,
): keyof Rules | undefined {
  return Object.keys(rules).find((name) => rules[name]!.applies(facts));
}

export const containersAtStart = {
  undoCreate: {
    condition: "its CreateContainer was cut off",
    applies: ({ phase }) => phase === "creating",
    rule: "undo, as if the call had failed",
  },
  loseInReboot: {
    condition: "the node has rebooted, which ended its processes",
    applies: ({ isThisBoot }) => !isThisBoot,
    rule: "EXITED, reason Unknown",
  },
} as const satisfies Table<{ phase: ContainerPhase["phase"]; isThisBoot: boolean }>;

type SandboxAtStart = { phase: SandboxPhase["phase"]; isThisBoot: boolean; hasContainers: boolean };

export const sandboxesAtStart = {
  stopAfterReboot: {
    // Also a sandbox whose record says that it is being made: in the last second before the reboot it may have become
    // ready without a record on disk.
    condition: "the node has rebooted, which removed its namespaces",
    applies: ({ isThisBoot }) => !isThisBoot,
    rule: "NOTREADY; the sweep releases what outlives a boot (CNI addresses)",
  },
  stopUnrecorded: {
    condition: "being made on record, but it has containers: its later records are lost",
    applies: ({ phase, hasContainers }) => phase === "creating" && hasContainers,
    rule: "NOTREADY; the sweep tears it down",
  },
  undoRun: {
    condition: "its RunPodSandbox was cut off",
    applies: ({ phase }) => phase === "creating",
    rule: "the sweep undoes it, as if the call had failed",
  },
} as const satisfies Table<SandboxAtStart>;

/** A record at the monitor's greeting, with what the greeting says of its container. */
export type ContainerAtGreeting = {
  phase: ContainerPhase["phase"];
  isThisBoot: boolean;
  hasExit: boolean;
  isRunning: boolean;
  isStarting: boolean;
  /** This daemon has requested the start, and waits for its outcome. */
  isOwnStart: boolean;
};

/** Applied before the daemon serves, so that its first list shows no running container as CREATED. */
export const containersAtGreeting = {
  commitReportedExit: {
    condition: "not EXITED on record, and the monitor has its exit",
    applies: ({ phase, isThisBoot, hasExit }) => phase !== "exited" && isThisBoot && hasExit,
    rule: "commit that exit",
  },
  followForeignStart: {
    condition: "the monitor is starting it for an earlier daemon",
    applies: ({ phase, isThisBoot, isStarting, isOwnStart }) =>
      phase !== "exited" && isThisBoot && isStarting && !isOwnStart,
    rule: "commit the outcome; until then no other attempt of that name is created",
  },
  commitReportedStart: {
    condition: "the monitor runs it: its StartContainer may have been cut off after the fact",
    applies: ({ phase, isThisBoot, isRunning, isStarting }) =>
      phase !== "exited" && isThisBoot && isRunning && !isStarting,
    rule: "RUNNING",
  },
} as const satisfies Table<ContainerAtGreeting>;

type SandboxAtGreeting = { phase: SandboxPhase["phase"]; hasPause: boolean; isRunning: boolean };

/** Applied after the daemon serves, and again a minute after one that fails. */
export const sandboxesAfterGreeting = {
  adoptPauseOrEnd: {
    condition: "ready with a pause container that the monitor does not run",
    applies: ({ phase, hasPause, isRunning }) => phase === "ready" && hasPause && !isRunning,
    rule: "the monitor adopts it; if it has ended, or the monitor refuses: NOTREADY",
  },
} as const satisfies Table<SandboxAtGreeting>;

/** Applied after sandboxesAfterGreeting. */
export const containersAfterGreeting = {
  killFailedStart: {
    condition: "EXITED on record, but the monitor runs or starts it",
    applies: ({ phase, isRunning, isStarting }) => phase === "exited" && (isRunning || isStarting),
    rule: "kill and delete it",
  },
  adoptOrLose: {
    condition: "RUNNING on record, but the monitor neither runs it nor has its exit",
    applies: ({ phase, isThisBoot, hasExit, isRunning, isStarting }) =>
      phase === "running" && isThisBoot && !hasExit && !isRunning && !isStarting,
    rule: "the monitor adopts it, and reports its exit; if the monitor refuses: killed, EXITED",
  },
} as const satisfies Table<ContainerAtGreeting>;

/** Applied after containersAfterGreeting. */
export const updatesAfterGreeting = {
  undoCutUpdate: {
    condition: "its UpdateContainerResources was cut off",
    applies: ({ isUpdating }) => isUpdating,
    rule: "roll back to the resources on record",
  },
} as const satisfies Table<{ isUpdating: boolean }>;

/** True if the id is listed, or reserved by a call that is making it. */
type HasRecord = { hasRecord: boolean };

/** Applied after updatesAfterGreeting. */
export const exitsAfterGreeting = {
  forgetExit: {
    condition: "the monitor has an exit without a record",
    applies: ({ hasRecord }) => !hasRecord,
    rule: "the monitor forgets it",
  },
} as const satisfies Table<HasRecord>;

const gcEveryMs = 60 * 60_000;

/** One pass each, in this order. */
export const orphans = {
  removeContainers: {
    condition: "a container of the OCI runtime without a record",
    applies: ({ hasRecord }: HasRecord) => !hasRecord,
    rule: "kill and delete it",
  },
  endSandboxes: {
    condition: "a sandbox whose teardown or undoing is not complete",
    // A running container needs its pod until the repeated StopPodSandbox has killed it.
    applies: ({ isEnding, hasRunning }: { isEnding: boolean; hasRunning: boolean }) =>
      isEnding && !hasRunning,
    rule: "go on with it, at growing intervals",
  },
  checkSandboxes: {
    condition: "a ready sandbox, whose namespace files may have been replaced or removed",
    applies: ({ phase }: { phase: SandboxPhase["phase"] }) => phase === "ready",
    rule: "NOTREADY if so",
  },
  removeMounts: {
    condition: "a mount of an unknown pod or container, or of a record set aside",
    applies: ({ hasRecord, isSetAside }: HasRecord & { isSetAside: boolean }) =>
      !hasRecord || isSetAside,
    rule: "unmount it",
  },
  removeStreamFolders: {
    condition: "a folder of streams of an unknown container",
    applies: ({ hasRecord }: HasRecord) => !hasRecord,
    rule: "remove it",
  },
  detachNetworks: {
    condition: "CNI attachments of an unknown pod",
    applies: ({ hasRecord }: HasRecord) => !hasRecord,
    rule: "CNI DEL with what was cached at ADD, at growing intervals",
  },
  removeNetns: {
    condition: "a network namespace of an unknown pod",
    // Only after CNI DEL: without the namespace a plugin cannot find all that it has to undo.
    applies: ({ hasRecord, isAttached }: HasRecord & { isAttached: boolean }) =>
      !hasRecord && !isAttached,
    rule: "remove it, once it has no CNI attachments",
  },
  removePods: {
    // The folder, made before the cgroup, proves whose the pod was: daemons may share a cgroup parent.
    condition: "a folder in `state` of an unknown pod",
    applies: ({ hasRecord }: HasRecord) => !hasRecord,
    rule: "remove the pod's cgroup, then the folder",
  },
  collectNetworks: {
    condition: "CNI attachments that only plugins know, sought at the start and every hour",
    applies: ({ sinceLastMs }: { sinceLastMs: number }) => sinceLastMs >= gcEveryMs,
    rule: "CNI GC, where plugins have it",
  },
} as const;
