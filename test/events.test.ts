// Tests pod events under a short churn with a fixed seed, and tests the checker with planted faults.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { toBigInt, toLong } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";
import { check, nameOf, type Event, type Item, type PodStatus } from "./event_check.ts";
import { churn } from "./events.ts";
import { type Daemon, startDaemon } from "./harness.ts";

const { ContainerState } = runtime.v1;
let daemon: Daemon;
let history: Item[] = [];
beforeAll(async () => {
  daemon = await startDaemon({ config: { "enable-pod-events": true } });
  const plan = { containers: 40, atOnce: 6, restarts: 2, seed: 7 };
  history = await churn(daemon, plan);
}, 200_000);
afterAll(() => daemon?.[Symbol.asyncDispose]());

test("under churn and restarts no event is missing, duplicated, early or out of order", () => {
  expect(check(history)).toEqual([]);
  const names = history.flatMap((item) => (item.kind === "event" ? [nameOf(item.event)] : []));
  for (const name of ["CREATED", "STARTED", "STOPPED", "DELETED"]) {
    expect(names.filter((one) => one === name).length).toBeGreaterThan(30);
  }
});

type Events = Extract<Item, { kind: "event" }>;

/** Returns the last container whose events all came on one stream, by name. */
function wholeLife(): Record<string, Events> {
  const lives = new Map<string, Record<string, Events>>();
  let found: Record<string, Events> = {};
  for (const item of history) {
    if (item.kind === "baseline") lives.clear();
    if (item.kind !== "event") continue;
    const { container_id: id, pod_sandbox_status: sandbox } = item.event;
    if (id === sandbox!.id) continue;
    const life = { ...lives.get(id), [nameOf(item.event)]: item };
    lives.set(id, life);
    if (Object.keys(life).length === 4) found = life;
  }
  return found;
}

function without(item: Item): Item[] {
  return history.filter((other) => other !== item);
}

/** Copies a message with other fields; unset fields keep their defaults. */
function changed<M extends object>(message: M, fields: object): M {
  return Object.assign(Object.create(Object.getPrototypeOf(message) as M) as M, message, fields);
}

function replaced(item: Events, change: (event: Event) => object): Item[] {
  const event = changed(item.event, change(item.event));
  return history.map((other) => (other === item ? { kind: "event", event } : other));
}

/** Copies an event with another status of its container. */
function restated(item: Events, change: object): Item[] {
  return replaced(item, ({ container_id, containers_statuses }) => ({
    containers_statuses: containers_statuses.map((status) =>
      status.id === container_id ? changed(status, change) : status,
    ),
  }));
}

function swapped(one: Item, other: Item): Item[] {
  return history.map((item) => (item === one ? other : item === other ? one : item));
}

/** Copies an event with a slightly later time. */
function doubled(item: Events): Item[] {
  const created_at = toLong(toBigInt(item.event.created_at) + 1n);
  const again: Item = { kind: "event", event: changed(item.event, { created_at }) };
  return history.flatMap((other) => (other === item ? [item, again] : [other]));
}

const stateOf = (state: runtime.v1.ContainerState) => ({ state });

describe("the checker finds", () => {
  test.each<[string, (life: Record<string, Events>) => Item[]]>([
    ["a CREATED that is missing", ({ CREATED }) => without(CREATED!)],
    ["a STARTED that is missing", ({ STARTED }) => without(STARTED!)],
    ["a STOPPED that is missing", ({ STOPPED }) => without(STOPPED!)],
    ["a DELETED that is missing", ({ DELETED }) => without(DELETED!)],
    ["an event that comes twice", ({ STARTED }) => doubled(STARTED!)],
    ["two events in the wrong order", ({ STARTED, STOPPED }) => swapped(STARTED!, STOPPED!)],
    [
      "a STOPPED before its exit is committed",
      ({ STOPPED }) => restated(STOPPED!, stateOf(ContainerState.CONTAINER_RUNNING)),
    ],
    [
      "a STARTED with the status of before",
      ({ STARTED }) => restated(STARTED!, stateOf(ContainerState.CONTAINER_CREATED)),
    ],
    ["a wrong exit code", ({ STOPPED }) => restated(STOPPED!, { exit_code: 256 })],
    ["a wrong reason", ({ STOPPED }) => restated(STOPPED!, { reason: "Unknown" })],
    [
      "a time that does not rise",
      ({ STOPPED, STARTED }) =>
        replaced(STOPPED!, () => ({ created_at: STARTED!.event.created_at })),
    ],
    [
      "a status of the pod's that is left out",
      ({ CREATED }) => replaced(CREATED!, () => ({ containers_statuses: [] })),
    ],
    [
      "a status of a container that is gone",
      ({ DELETED, STOPPED }) =>
        replaced(DELETED!, () => ({ containers_statuses: STOPPED!.event.containers_statuses })),
    ],
    [
      "an event without its sandbox",
      ({ DELETED }) => replaced(DELETED!, () => ({ pod_sandbox_status: null })),
    ],
    [
      "a list that knows a container which no event told of",
      () =>
        history.map((item) =>
          item.kind === "quiet"
            ? { ...item, pods: item.pods.map((pod) => withStranger(pod)) }
            : item,
        ),
    ],
  ])("%s", (_, plant) => {
    const life = wholeLife();
    expect(Object.keys(life)).toHaveLength(4);
    expect(check(plant(life))).not.toEqual([]);
  });
});

function withStranger(pod: PodStatus): PodStatus {
  const stranger = { id: "stranger", state: ContainerState.CONTAINER_CREATED };
  return changed(pod, { containers_statuses: [...pod.containers_statuses, stranger] });
}
