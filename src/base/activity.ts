// Tracks the activities of this process: its calls in flight, and the steps inside each call. Dump, metrics and
// tracing read them. Tracking costs a few microseconds a step, since only a reader formats anything.
import { AsyncLocalStorage } from "node:async_hooks";

/**
 * call: a client's RPC; step: of a pod's life, or of the daemon's start; wait: for a lock; each other kind is named
 * after what it waits for, such as a CNI plugin.
 */
export type ActivityKind =
  | "call"
  | "step"
  | "wait"
  | "cni"
  | "nri"
  | "monitor"
  | "runtime"
  | "store"
  | "pull";

/** Names or ids of the objects of a call. */
export type Subject = Record<string, string | undefined>;

export type Activity = {
  readonly kind: ActivityKind;
  /** Label values come from a bounded set, except those of a wait. */
  readonly labels: Readonly<Record<string, string>>;
  /** undefined for a call, and for work that belongs to no call. */
  readonly parent: Activity | undefined;
  /** As of performance.now(). */
  readonly beganMs: number;
  /** Returns the names of the activity's objects; undefined once the activity has ended. */
  subject: (() => Subject) | undefined;
  /** Of a call: the client's W3C trace context; "" without one. */
  readonly traceparent: string;
  /** Bytes received so far by the fetch of a layer; 0 for other activities. */
  bytes: number;
  /** Activities under way inside this one, oldest first; kept only by an activity without a parent. */
  readonly inside: Set<Activity>;
  hasEnded: boolean;
};

/** Called at the end of each activity; error: why the activity failed. The observer must not throw. */
export type ActivityObserver = (activity: Activity, endedMs: number, error?: unknown) => void;

type Options = { subject?: (() => Subject) | undefined; traceparent?: string };

const current = new AsyncLocalStorage<Activity>();
const underWay = new Set<Activity>();
const observers = new Set<ActivityObserver>();

/** The innermost activity that the caller is in. */
export function currentActivity(): Activity | undefined {
  return current.getStore();
}

/** Returns the calls in flight, and work that belongs to no call, oldest first. */
export function activitiesUnderWay(): readonly Activity[] {
  return [...underWay];
}

/** Calls the observer at the end of each activity, until the returned object is disposed of. */
export function observeActivities(observer: ActivityObserver): Disposable {
  observers.add(observer);
  return { [Symbol.dispose]: () => observers.delete(observer) };
}

/** Begins a call of a client; `within` runs its work, and endActivity() must follow. */
export function beginCall(method: string, options: Options = {}): Activity {
  return begin("call", { method }, options);
}

/** Runs work whose activities are inside this one. */
export function within<T>(activity: Activity, work: () => T): T {
  return current.run(activity, work);
}

/** Runs work as an activity inside the current one. @throws as the work does. */
export async function activity<T>(
  kind: ActivityKind,
  labels: Activity["labels"],
  work: () => T | Promise<T>,
  subject?: () => Subject,
): Promise<T> {
  const begun = begin(kind, labels, { subject });
  try {
    const result = await current.run(begun, work);
    endActivity(begun);
    return result;
  } catch (error) {
    endActivity(begun, error);
    throw error;
  }
}

/** Reports an activity inside the current one whose end another process has announced. Times: performance.now(). */
export function reportActivity(
  kind: ActivityKind,
  labels: Activity["labels"],
  { beganMs, endedMs, bytes = 0 }: { beganMs: number; endedMs: number; bytes?: number },
): void {
  const done = newActivity(kind, labels, { beganMs });
  done.hasEnded = true;
  done.bytes = bytes;
  for (const observer of observers) observer(done, endedMs);
}

export function endActivity(activity: Activity, error?: unknown): void {
  if (activity.hasEnded) return;
  activity.hasEnded = true;
  rootOf(activity).inside.delete(activity);
  underWay.delete(activity);
  const endedMs = performance.now();
  for (const observer of observers) observer(activity, endedMs, error);
  activity.subject = undefined; // what still runs in its context must not keep the request
}

/** Returns an activity's name for people: "cni ADD bridge". */
export function activityName({ kind, labels }: Activity): string {
  return [...(kind === "call" ? [] : [kind]), ...Object.values(labels)].join(" ");
}

export function rootOf(activity: Activity): Activity {
  let root = activity;
  while (root.parent !== undefined) root = root.parent;
  return root;
}

function begin(kind: ActivityKind, labels: Activity["labels"], options: Options = {}): Activity {
  const begun = newActivity(kind, labels, { ...options, beganMs: performance.now() });
  if (begun.parent === undefined) underWay.add(begun);
  else rootOf(begun).inside.add(begun);
  return begun;
}

function newActivity(
  kind: ActivityKind,
  labels: Activity["labels"],
  { beganMs, subject, traceparent = "" }: Options & { beganMs: number },
): Activity {
  const around = kind === "call" ? undefined : current.getStore();
  // Background work that outlives the call in which it began has no parent.
  const parent = around === undefined || rootOf(around).hasEnded ? undefined : around;
  const state = { bytes: 0, inside: new Set<Activity>(), hasEnded: false };
  return { kind, labels, parent, beganMs, subject, traceparent, ...state };
}
