// Keeps what happened to each pod (isulad-ts why): calls with duration and failure, pulls, networks, NRI changes
// and exits. All of it comes from activities and from the commits of records, so that no handler reports anything.
//
// Decision: pods have their name as key, since a pull, and a pod whose RunPodSandbox fails, have no id. An entry
// that equals an earlier one replaces it and has a count: a container that restarts for hours has few entries.
import { type Activity, observeActivities, rootOf } from "../base/activity.ts";
import { epochMs, nowMs } from "../base/clock.ts";
import { codeOf, messageOf } from "../base/errors.ts";
import { isReadOnlyCall } from "../base/read_only_calls.ts";
import { shorten, withoutIds } from "../base/text.ts";
import type { ContainerAdjustment } from "../proto/nri_types.ts";
import type { Container, ContainerPhase } from "../state/container.ts";
import { foreignSlice, podName, type Sandbox } from "../state/sandbox.ts";

/**
 * An entry takes about 180 bytes and its text (measured with bun:jsc): usually 2 KiB a pod, and at most 5.3 MiB if
 * every pod has as many and as long entries as it may have.
 */
export const podsMax = 256;
export const entriesMax = 32;
/** Bound of an entry's text in UTF-8. */
export const textBytesMax = 500;
const objectsMax = 16;
/** As in Kubernetes. A refused call may have any other name, of any length: it belongs to no pod. */
const podPattern = /^[^/\p{Cc}]{1,253}\/[^/\p{Cc}]{1,253}$/u;
const containerPattern = /^[^/\p{Cc}]{0,253}$/u;

export type PodEntry = {
  /** When a call or a network began, or anything else happened, the last time if often: ms since the epoch. */
  atMs: number;
  /** The name of a call, or network, network_end, nri, exit, not_ready, warning, remove, log, log_end. */
  what: string;
  /** The container's name; "" for the pod itself. */
  container: string;
  /** An image, the names of plugins, or a message. */
  detail: string;
  /** Of a failed call the gRPC code, of an exit CRI's reason; else "". */
  code: string;
  /** Duration of a call or of a network's plugins; of an exit, how long the container ran; else 0. */
  tookMs: number;
  /** Bytes that a pull received. */
  bytes: number;
  exitCode: number;
  times: number;
  firstMs: number;
};

export type PodTimeline = {
  pod: string;
  beganMs: number;
  /** Sandboxes and containers, also removed ones. container: "" for a sandbox. */
  objects: { id: string; container: string; createdAtNs: string }[];
  entries: PodEntry[];
  dropped: number;
  /** Ids of the pod's sandboxes that were committed and not removed: a new one may exist beside an ended one. */
  sandboxes: Set<string>;
  isRemoved: boolean;
};

/** Calls whose success is worth an entry; every call that changes state has one for its failure. */
const keptCalls = new Set([
  "PullImage",
  "RunPodSandbox",
  "CreateContainer",
  "StartContainer",
  "StopContainer",
  "StopPodSandbox",
  "UpdateContainerResources",
  "UpdatePodSandboxResources",
  "CheckpointContainer",
]);

type Exited = Extract<ContainerPhase, { phase: "exited" }>;
type RecoveredContainer = Omit<Container, "sandboxId">;

/** The end of a time in which a log could not be written; droppedBytes: of the container, since its start. */
export type LogEnd = { droppedBytes: number; tookMs: number };

/** What the activities inside a call have done. */
type Parts = { bytes: number; networks: Map<string, Network> };
type Network = { plugins: string[]; beganMs: number; endedMs: number };

export class PodHistory implements Disposable {
  /** Milliseconds since the epoch; of what happened earlier the records tell a part, and the log the rest. */
  readonly sinceMs = nowMs();
  /** By pod; the timeline that changed last is last. */
  readonly #timelines = new Map<string, PodTimeline>();
  readonly #parts = new WeakMap<Activity, Parts>();
  readonly #observing = observeActivities((...ended) => this.#ended(...ended));

  [Symbol.dispose](): void {
    this.#observing[Symbol.dispose]();
  }

  timelines(): PodTimeline[] {
    return [...this.#timelines.values()];
  }

  /** pod: namespace/name. The entries are in the order of their times. */
  timeline(pod: string): PodTimeline | undefined {
    const found = this.#timelines.get(pod);
    if (found === undefined) return undefined;
    return { ...found, entries: found.entries.toSorted((a, b) => a.atMs - b.atMs) };
  }

  /** Called at the commit of a container's record. pod: namespace/name; undefined: it has no pod's record. */
  containerCommitted(
    pod: string | undefined,
    before: Container | undefined,
    after: Container | undefined,
  ): void {
    const { id, config, createdAtNs } = (after ?? before)!;
    const container = config.metadata?.name ?? "";
    if (pod === undefined) return;
    if (before === undefined) this.#addObject(pod, { id, container, createdAtNs });
    if (after === undefined) return this.#add(pod, { what: "remove", container });
    const { phase } = after;
    if (phase.phase !== "exited" || before?.phase.phase === "exited") return;
    if (phase.reason === "StartError") return; // the failure of its call says it
    this.#addExit(pod, container, phase);
  }

  #addExit(pod: string, container: string, phase: Exited): void {
    const { message: detail, reason: code, exitCode } = phase;
    const atMs = msOf(phase.finishedAtNs);
    const tookMs = phase.startedAtNs === "0" ? 0 : atMs - msOf(phase.startedAtNs);
    this.#add(pod, { what: "exit", container, detail, code, exitCode, tookMs, atMs });
  }

  /** Called once, at the start, with the records of an earlier daemon: adds what they tell of each pod. */
  recovered(sandboxes: readonly Sandbox[], containers: readonly Container[]): void {
    const pods = new Map(sandboxes.map(({ id, config }) => [id, podName(config)]));
    for (const { id, config, createdAtNs, phase } of inOrder(sandboxes)) {
      const pod = podName(config);
      if (pod === undefined) continue;
      this.#addObject(pod, { id, container: "", createdAtNs });
      this.#add(pod, { what: "RunPodSandbox", atMs: msOf(createdAtNs) });
      this.#revive(pod, id);
      const detail = phase.phase === "notready" ? phase.message : "";
      if (detail !== "") this.#add(pod, { what: "not_ready", detail });
    }
    for (const { sandboxId, ...container } of inOrder(containers)) {
      const pod = pods.get(sandboxId);
      if (pod !== undefined) this.#addRecovered(pod, container);
    }
  }

  #addRecovered(pod: string, { id, config, createdAtNs, image, phase }: RecoveredContainer): void {
    const container = config.metadata?.name ?? "";
    const attempt = config.metadata?.attempt ?? 0;
    this.#addObject(pod, { id, container, createdAtNs });
    const detail = attempt > 0 ? `${image.name}, restart ${attempt}` : image.name;
    this.#add(pod, { what: "CreateContainer", container, detail, atMs: msOf(createdAtNs) });
    if ("startedAtNs" in phase && phase.startedAtNs !== "0") {
      this.#add(pod, { what: "StartContainer", container, atMs: msOf(phase.startedAtNs) });
    }
    if (phase.phase === "exited") this.#addExit(pod, container, phase);
  }

  /** Called at the commit of a sandbox's record. */
  sandboxCommitted(before: Sandbox | undefined, after: Sandbox | undefined): void {
    const { id, config, createdAtNs } = (after ?? before)!;
    const pod = podName(config);
    if (pod === undefined) return;
    if (before === undefined) {
      this.#addObject(pod, { id, container: "", createdAtNs });
      const detail = after && foreignSlice(after.cgroup);
      if (detail !== undefined) this.#add(pod, { what: "warning", detail });
    }
    if (after === undefined) return this.#sandboxRemoved(pod, id);
    this.#revive(pod, id);
    const isEnd = after.phase.phase === "notready" && before?.phase.phase === "ready";
    if (!isEnd || after.phase.phase !== "notready" || after.ending !== undefined) return;
    this.#add(pod, { what: "not_ready", detail: after.phase.message });
  }

  #sandboxRemoved(pod: string, id: string): void {
    this.#add(pod, { what: "remove" });
    const timeline = this.#timelines.get(pod);
    if (timeline === undefined) return;
    timeline.sandboxes.delete(id);
    timeline.isRemoved = timeline.sandboxes.size === 0;
  }

  /** Called when a container's log cannot be written, and with `end` when it can, or the container has ended. */
  logFailed(
    of: { pod: string; container: string },
    { errno, path, end }: { errno: string; path: string; end?: LogEnd },
  ): void {
    const { pod, container } = of;
    if (end === undefined)
      return this.#add(pod, { what: "log", container, code: errno, detail: path });
    const { droppedBytes: bytes, tookMs } = end;
    this.#add(pod, { what: "log_end", container, bytes, tookMs });
  }

  /** Called for each NRI plugin that changes a container at its creation. plugin: its index and name. */
  adjusted(of: { pod: string; container: string }, plugin: string, adjust: ContainerAdjustment) {
    const detail = `${plugin}: ${changedFields(adjust).join(", ")}`;
    this.#add(of.pod, { what: "nri", container: of.container, detail });
  }

  #ended(activity: Activity, endedMs: number, error: unknown): void {
    if (activity.kind === "cni" || activity.kind === "pull") {
      if (error === undefined) this.#addPart(activity, endedMs);
    } else if (activity.kind === "call") this.#callEnded(activity, endedMs, error);
  }

  #addPart({ kind, labels, beganMs, bytes, parent }: Activity, endedMs: number): void {
    if (parent === undefined) return;
    const root = rootOf(parent);
    const parts = this.#parts.get(root) ?? { bytes: 0, networks: new Map<string, Network>() };
    this.#parts.set(root, parts);
    parts.bytes += bytes;
    if (kind !== "cni") return;
    const { command = "", plugin = "" } = labels;
    const network = parts.networks.get(command) ?? { plugins: [], beganMs, endedMs };
    parts.networks.set(command, network);
    network.plugins.push(plugin);
    network.endedMs = endedMs;
  }

  #callEnded(call: Activity, endedMs: number, error: unknown): void {
    const { labels, beganMs } = call;
    const what = labels["method"] ?? "";
    if (isReadOnlyCall(what)) return;
    const parts = this.#parts.get(call);
    const isKept = error !== undefined || keptCalls.has(what);
    if (!isKept && parts === undefined) return;
    const { pod, container = "", image = "" } = call.subject?.() ?? {};
    if (pod === undefined) return;
    const time = (from: number, to: number) => ({ atMs: epochMs(from), tookMs: to - from });
    if (isKept) {
      const failure = { detail: messageOf(error), code: codeOf(error) };
      const outcome = error === undefined ? { detail: image } : failure;
      const bytes = parts?.bytes ?? 0;
      this.#add(pod, { what, container, bytes, ...outcome, ...time(beganMs, endedMs) });
      if (what === "RunPodSandbox") this.#revive(pod);
    }
    for (const [command, network] of parts?.networks ?? []) {
      const what = { ADD: "network", DEL: "network_end" }[command];
      if (what === undefined) continue;
      const detail = network.plugins.join(", ");
      this.#add(pod, { what, detail, ...time(network.beganMs, network.endedMs) });
    }
  }

  /** Marks a removed pod as present, when it gets a sandbox or when RunPodSandbox has failed. Makes no timeline. */
  #revive(pod: string, sandbox?: string): void {
    const timeline = this.#timelines.get(pod);
    if (timeline === undefined) return;
    timeline.isRemoved = false;
    if (sandbox !== undefined) timeline.sandboxes.add(sandbox);
  }

  #add(pod: string, given: Partial<PodEntry> & Pick<PodEntry, "what">): void {
    if (!isNamed(pod, given.container ?? "")) return;
    const timeline = this.#touched(pod);
    const entry = newEntry(given);
    const { entries } = timeline;
    const at = entries.findIndex((old) => isSame(old, entry));
    if (at >= 0) {
      const [old] = entries.splice(at, 1);
      entry.times = old!.times + 1;
      entry.firstMs = old!.firstMs;
    } else if (entries.length >= entriesMax) {
      entries.shift();
      timeline.dropped++;
    }
    entries.push(entry);
  }

  #addObject(pod: string, object: PodTimeline["objects"][number]): void {
    if (!isNamed(pod, object.container)) return;
    const { objects } = this.#touched(pod);
    if (objects.push(object) > objectsMax) objects.shift();
  }

  /** Returns the pod's timeline, which is then the one that changed last. */
  #touched(pod: string): PodTimeline {
    const timeline = this.#timelines.get(pod) ?? newTimeline(pod);
    if (!this.#timelines.delete(pod) && this.#timelines.size >= podsMax) this.#dropOne();
    this.#timelines.set(pod, timeline);
    return timeline;
  }

  #dropOne(): void {
    const all = this.timelines();
    const { pod } = all.find(({ isRemoved }) => isRemoved) ?? all[0]!;
    this.#timelines.delete(pod);
  }
}

/** Sorts records by their creation; the oldest is first. */
function inOrder<R extends { createdAtNs: string }>(records: readonly R[]): R[] {
  return records.toSorted((a, b) => Number(BigInt(a.createdAtNs) - BigInt(b.createdAtNs)));
}

function msOf(ns: string): number {
  return Number(BigInt(ns) / 1_000_000n);
}

function newTimeline(pod: string): PodTimeline {
  const counts = { dropped: 0, sandboxes: new Set<string>(), isRemoved: false };
  return { pod, beganMs: nowMs(), objects: [], entries: [], ...counts };
}

function isNamed(pod: string, container: string): boolean {
  return podPattern.test(pod) && containerPattern.test(container);
}

/** Makes an entry with all fields in a fixed order: objects of one shape take the least memory. */
function newEntry(given: Partial<PodEntry> & Pick<PodEntry, "what">): PodEntry {
  const { atMs = nowMs(), what, container = "", detail = "", code = "" } = given;
  const { tookMs = 0, bytes = 0, exitCode = 0 } = given;
  const text = shorten(detail, textBytesMax);
  const counts = { tookMs, bytes, exitCode, times: 1, firstMs: atMs };
  return { atMs, what, container, detail: text, code, ...counts };
}

function isSame(a: PodEntry, b: PodEntry): boolean {
  return (
    a.what === b.what &&
    a.container === b.container &&
    a.code === b.code &&
    a.exitCode === b.exitCode &&
    (a.detail === b.detail || (a.code !== "" && withoutIds(a.detail) === withoutIds(b.detail)))
  );
}

/** Names the fields that are set: "env", "linux.resources.memory". */
function changedFields({ linux, ...others }: ContainerAdjustment): string[] {
  const { resources, ...rest } = linux ?? {};
  return [
    ...namesOf(others, ""),
    ...namesOf(rest, "linux."),
    ...namesOf(resources ?? {}, "linux.resources."),
  ];
}

/** A decoded message has its lists and maps even if they are empty. */
function namesOf(fields: object, prefix: string): string[] {
  const isEmpty = (value: unknown) =>
    Array.isArray(value)
      ? value.length === 0
      : value?.constructor === Object && Object.keys(value).length === 0;
  return Object.entries(fields).flatMap(([name, value]) =>
    value === null || value === "" || isEmpty(value) ? [] : [prefix + name],
  );
}
