// Pod events: what a committed change of a record means to who listens (CRI's GetContainerEvents).
import type { Container } from "./container.ts";
import type { Sandbox } from "./sandbox.ts";

export type PodEventType = "CREATED" | "STARTED" | "STOPPED" | "DELETED";

/** Everything as of one commit; records are never changed in place. */
export type PodEvent = {
  /** The container's, or the sandbox's for its own events. */
  id: string;
  type: PodEventType;
  createdAtNs: bigint;
  /** The last one there was, when it is the sandbox that is deleted. */
  sandbox: Sandbox | undefined;
  /** All that are listed for the pod. */
  containers: Container[];
};

/** undefined: not listed (yet, or any more). */
export function containerEvents(
  before: Container | undefined,
  after: Container | undefined,
): PodEventType[] {
  if (after === undefined) return before === undefined ? [] : ["DELETED"];
  if (before === undefined) return ["CREATED"];
  if (before.phase.phase === after.phase.phase) return [];
  switch (after.phase.phase) {
    case "creating":
    case "created":
      return [];
    case "running":
      return ["STARTED"];
    case "exited":
      return ["STOPPED"];
  }
}

/** A sandbox is created and started in one step; one whose start could not be undone has stopped. */
export function sandboxEvents(
  before: Sandbox | undefined,
  after: Sandbox | undefined,
): PodEventType[] {
  if (after === undefined) return before === undefined ? [] : ["DELETED"];
  if (before?.phase.phase === after.phase.phase) return [];
  const created: PodEventType[] = before === undefined ? ["CREATED"] : [];
  switch (after.phase.phase) {
    case "creating":
      return created;
    case "ready":
      return [...created, "STARTED"];
    case "notready":
      return [...created, "STOPPED"];
  }
}
