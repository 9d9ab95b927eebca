// Derives pod events (CRI's GetContainerEvents) from committed changes of records.
import type { Container } from "./container.ts";
import type { Sandbox } from "./sandbox.ts";

export type PodEventType = "CREATED" | "STARTED" | "STOPPED" | "DELETED";

/** Holds the state as of one commit; records are never changed in place. */
export type PodEvent = {
  /** The container's, or the sandbox's for its own events. */
  id: string;
  type: PodEventType;
  createdAtNs: bigint;
  /** For a deleted sandbox, its last record. */
  sandbox: Sandbox | undefined;
  /** All listed containers of the pod. */
  containers: Container[];
};

/** Undefined stands for a record that is not listed: not yet, or no longer. */
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

/** A sandbox is created and started in one step; if a failed start cannot be rolled back, it is created and stopped. */
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
