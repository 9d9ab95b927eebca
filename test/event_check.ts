// Checks a history of pod events against List and Status: no event may be missing, duplicated, early or out
// of order. It is pure, so that events.test.ts can test it with planted faults.
import { toBigInt } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";

const { ContainerEventType, ContainerState, PodSandboxState } = runtime.v1;
export type Event = runtime.v1.ContainerEventResponse;
export type Status = runtime.v1.ContainerStatus;
export type PodStatus = runtime.v1.PodSandboxStatusResponse;

/** Items in the order in which a client saw them. */
export type Item =
  | { kind: "event"; event: Event }
  /** All pods by List and Status after connecting: the baseline of the events. */
  | { kind: "baseline"; pods: PodStatus[]; toNs: bigint }
  /** All pods while no calls run and every event has arrived. */
  | { kind: "quiet"; pods: PodStatus[] }
  /** ContainerStatus, called when the container's STOPPED arrived; undefined: it was removed by then. */
  | { kind: "status"; id: string; status: Status | undefined }
  /** How the test ended a container. */
  | { kind: "expected"; id: string; exitCode: number; reason: string };

type Phase = "created" | "running" | "exited";
type Pod = { phase: Phase; sinceNs: bigint; containers: Map<string, Status> };

export function nameOf({ container_event_type }: Event): string {
  return ContainerEventType[container_event_type].replace(/^CONTAINER_|_EVENT$/g, "");
}

/** Describes the faults of a history. */
export function check(history: readonly Item[]): string[] {
  const checker = new Checker();
  for (const item of history) checker.take(item);
  return checker.problems;
}

/** Checks a history incrementally. */
export class Checker {
  readonly problems: string[] = [];
  /** State by the events. */
  readonly #pods = new Map<string, Pod>();
  /** Stopped containers as reported by their event. */
  readonly #ends = new Map<string, Status>();
  readonly #expected = new Map<string, { exitCode: number; reason: string }>();
  #lastNs = 0n;
  #baselineNs = 0n;

  take(item: Item): void {
    switch (item.kind) {
      case "event":
        return this.#event(item.event);
      case "baseline":
        return this.#baseline(item.pods, item.toNs);
      case "quiet":
        return this.#quiet(item.pods);
      case "status":
        return this.#status(item.id, item.status);
      case "expected": {
        const { id, exitCode, reason } = item;
        this.#expected.set(id, { exitCode, reason });
        return this.#compareEnd(id);
      }
    }
  }

  #problem(id: string, words: string): void {
    this.problems.push(`${id.slice(0, 12)}: ${words}`);
  }

  #event(event: Event): void {
    const { container_id: id, pod_sandbox_status: sandbox } = event;
    const atNs = toBigInt(event.created_at);
    if (atNs <= this.#lastNs)
      this.#problem(id, `${nameOf(event)} is not later than what came before`);
    this.#lastNs = atNs;
    if (!sandbox?.id) return this.#problem(id, `${nameOf(event)} has no sandbox status`);
    const pod = this.#pods.get(sandbox.id);
    const isNew = id === sandbox.id && nameOf(event) === "CREATED";
    if (pod === undefined && !isNew && atNs <= this.#baselineNs) return; // it was removed before the baseline
    if (pod !== undefined && atNs <= pod.sinceNs) return; // in the baseline already
    if (id === sandbox.id) this.#sandboxEvent(event, id, pod);
    else if (pod === undefined) this.#problem(id, `${nameOf(event)} in a pod that is not there`);
    else this.#containerEvent(event, id, pod);
    this.#compareStatuses(event, sandbox.id);
  }

  #sandboxEvent(event: Event, id: string, pod: Pod | undefined): void {
    const name = nameOf(event);
    const step = `${pod?.phase ?? "absent"} ${name}`;
    const next: Record<string, Phase | undefined> = {
      "absent CREATED": "created",
      "created STARTED": "running",
      "created STOPPED": "exited",
      "running STOPPED": "exited",
      "exited DELETED": undefined,
    };
    if (!(step in next)) return this.#problem(id, `sandbox: ${step} is out of order`);
    const phase = next[step];
    if (phase === undefined) {
      for (const left of pod!.containers.keys())
        this.#problem(left, "left when its pod was deleted");
      this.#pods.delete(id);
    } else if (pod === undefined) {
      this.#pods.set(id, { phase, sinceNs: 0n, containers: new Map() });
    } else pod.phase = phase;
    const isReady = event.pod_sandbox_status!.state === PodSandboxState.SANDBOX_READY;
    const wantsReady = phase === "created" || phase === "running";
    if (isReady !== wantsReady && name !== "CREATED") {
      this.#problem(id, `${name} with a sandbox that is ${isReady ? "ready" : "not ready"}`);
    }
  }

  #containerEvent(event: Event, id: string, pod: Pod): void {
    const name = nameOf(event);
    const before = pod.containers.get(id);
    const told = event.containers_statuses.find((one) => one.id === id) as Status | undefined;
    const step = `${before === undefined ? "absent" : phaseOf(before)} ${name}`;
    const neverRan = told !== undefined && toBigInt(told.started_at) === 0n;
    const legal =
      ["absent CREATED", "created STARTED", "running STOPPED"].includes(step) ||
      ["created DELETED", "exited DELETED"].includes(step) ||
      (step === "created STOPPED" && neverRan);
    if (!legal) this.#problem(id, `${step} is out of order`);
    if (name === "DELETED") {
      if (told !== undefined) this.#problem(id, "DELETED still has its status");
      pod.containers.delete(id);
      return;
    }
    const wanted = { CREATED: "created", STARTED: "running", STOPPED: "exited" }[name];
    if (told === undefined) return this.#problem(id, `${name} lacks its own status`);
    if (phaseOf(told) !== wanted) this.#problem(id, `${name} with the status ${phaseOf(told)}`);
    pod.containers.set(id, told);
    if (name !== "STOPPED") return;
    this.#ends.set(id, told);
    if (toBigInt(told.finished_at) === 0n) this.#problem(id, "STOPPED without an end time");
    this.#compareEnd(id);
  }

  /** Compares the statuses in an event with the state by all events of that pod. */
  #compareStatuses({ containers_statuses, container_id: id }: Event, podId: string): void {
    const known = this.#pods.get(podId)?.containers ?? new Map<string, Status>();
    const told = containers_statuses as Status[];
    for (const status of told) {
      const other = known.get(status.id);
      if (other === undefined)
        this.#problem(id, `tells of ${status.id.slice(0, 12)}, which is not there`);
      else if (!isSame(status, other))
        this.#problem(id, `tells another status of ${status.id.slice(0, 12)}`);
    }
    for (const missing of known.keys()) {
      if (!told.some((status) => status.id === missing)) {
        this.#problem(id, `does not tell of ${missing.slice(0, 12)}`);
      }
    }
  }

  #baseline(pods: PodStatus[], toNs: bigint): void {
    this.#pods.clear();
    this.#baselineNs = toNs;
    for (const pod of pods) {
      const sinceNs = toBigInt(pod.timestamp);
      if (sinceNs <= this.#lastNs) this.#problem(pod.status!.id!, "a status not later than events");
      const phase = pod.status?.state === PodSandboxState.SANDBOX_READY ? "running" : "exited";
      const statuses = pod.containers_statuses as Status[];
      const containers = new Map(statuses.map((status) => [status.id, status]));
      this.#pods.set(pod.status!.id!, { phase, sinceNs, containers });
    }
  }

  #quiet(pods: PodStatus[]): void {
    const listed = new Set(pods.map((pod) => pod.status!.id!));
    for (const id of this.#pods.keys()) {
      if (!listed.has(id)) this.#problem(id, "DELETED of a sandbox is missing");
    }
    for (const { status, containers_statuses } of pods) {
      const known = this.#pods.get(status!.id!);
      if (known === undefined) {
        this.#problem(status!.id!, "CREATED of a sandbox is missing");
        continue;
      }
      const ready = status!.state === PodSandboxState.SANDBOX_READY;
      if (ready !== (known.phase === "running")) {
        this.#problem(status!.id!, `events say ${known.phase}, List says ready: ${ready}`);
      }
      const left = new Map(known.containers);
      for (const one of containers_statuses as Status[]) {
        const said = left.get(one.id);
        left.delete(one.id);
        if (said === undefined) this.#problem(one.id, "CREATED is missing");
        else if (!isSame(said, one)) {
          this.#problem(one.id, `events say ${phaseOf(said)}, Status says ${phaseOf(one)}`);
        }
      }
      for (const id of left.keys()) this.#problem(id, "DELETED is missing");
    }
  }

  #status(id: string, status: Status | undefined): void {
    const end = this.#ends.get(id);
    if (status === undefined || end === undefined || isSame(status, end)) return;
    this.#problem(id, `its event told ${endOf(end)}, its status tells ${endOf(status)}`);
  }

  #compareEnd(id: string): void {
    const [end, expected] = [this.#ends.get(id), this.#expected.get(id)];
    if (end === undefined || expected === undefined) return;
    if (end.exit_code === expected.exitCode && end.reason === expected.reason) return;
    this.#problem(id, `ended with ${expected.exitCode} ${expected.reason}, told ${endOf(end)}`);
  }
}

function phaseOf({ state }: Status): Phase | "unknown" {
  const phases: Record<number, Phase> = {
    [ContainerState.CONTAINER_CREATED]: "created",
    [ContainerState.CONTAINER_RUNNING]: "running",
    [ContainerState.CONTAINER_EXITED]: "exited",
  };
  return phases[state] ?? "unknown";
}

function endOf({ exit_code, reason }: Status): string {
  return `${exit_code} ${reason}`;
}

function isSame(a: Status, b: Status): boolean {
  const times = (one: Status) => [one.created_at, one.started_at, one.finished_at].map(toBigInt);
  return (
    a.state === b.state &&
    endOf(a) === endOf(b) &&
    times(a).every((time, index) => time === times(b)[index])
  );
}
