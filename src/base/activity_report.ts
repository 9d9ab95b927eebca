// Formats the calls in flight and the locks in use for a dump.
import {
  activitiesUnderWay,
  activityName,
  rootOf,
  type Activity,
  type Subject,
} from "./activity.ts";
import { locksInUse, type Turn } from "./lock_states.ts";

export type CallReport = {
  call: string;
  /** Pod, container, image, where the request names them. */
  subject: Subject;
  ageMs: number;
  /** The activities under way inside the call, oldest first: an outer one stands before those inside it. */
  steps: { step: string; subject: Subject; ageMs: number }[];
};

export type LockReport = { lock: string; holders: TurnReport[]; waiting: TurnReport[] };
/** by: a call, or background work. */
type TurnReport = { by: string; forMs: number };

/** Returns the calls in flight, oldest first, and background work among them under its kind and name. */
export function callReports(nowMs = performance.now()): CallReport[] {
  return activitiesUnderWay().map((activity) => ({
    call: activityName(activity),
    subject: activity.subject?.() ?? {},
    ageMs: Math.round(nowMs - activity.beganMs),
    steps: [...activity.inside].map((inner) => ({
      step: activityName(inner),
      subject: inner.subject?.() ?? {},
      ageMs: Math.round(nowMs - inner.beganMs),
    })),
  }));
}

export function lockReports(nowMs = performance.now()): LockReport[] {
  const turns = (all: ReadonlySet<Turn>) =>
    [...all].map(({ by, sinceMs }) => ({
      by: ownerOf(by),
      forMs: Math.round(nowMs - sinceMs),
    }));
  return locksInUse().map(({ what, holders, waiting }) => ({
    lock: what,
    holders: turns(holders),
    waiting: turns(waiting),
  }));
}

function ownerOf(activity: Activity | undefined): string {
  if (activity === undefined) return "background work";
  const root = rootOf(activity);
  const { pod = "", container = "", image = "" } = root.subject?.() ?? {};
  return [activityName(root), pod, container, image].filter(Boolean).join(" ");
}
