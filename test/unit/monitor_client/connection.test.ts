// Tests the states of the daemon's connection to its monitor, without a monitor.
import { describe, expect, test } from "bun:test";
import {
  search,
  searchFailed,
  socketClosed,
  startIfDue,
  unanswered,
  upgrade,
  type Connection,
  type Searching,
} from "../../../src/monitor_client/connection.ts";

const running = () => false;
const ended = () => true;
const noStart = () => {
  throw new Error("started a monitor that was not due");
};

/** A search that began at 0 and has started a monitor at atMs. */
function startedAt(atMs: number, hasEnded: () => boolean): Searching {
  return startIfDue(search(0), atMs, () => hasEnded);
}

describe("starting", () => {
  test("a search starts the first monitor at once", () => {
    expect(startedAt(0, running)).toEqual({
      state: "searching",
      deadlineMs: 30_000,
      hasOusted: false,
      candidate: { sinceMs: 0, hasEnded: running },
      pauseMs: 20,
    });
  });

  test("a monitor that neither ends nor answers gets 15 s before another is started", () => {
    const searching = startedAt(0, running);
    expect(startIfDue(searching, 14_999, noStart)).toBe(searching);
    const next = startIfDue(searching, 15_000, () => ended);
    expect(next.candidate).toEqual({ sinceMs: 15_000, hasEnded: ended });
    expect(next.pauseMs).toBe(20);
  });

  test("monitors that end at once are started at intervals that double up to 2 s", () => {
    let searching = startedAt(0, ended);
    const starts: number[] = [];
    for (let nowMs = 0; nowMs < 10_000; nowMs += 20) {
      searching = startIfDue(searching, nowMs, () => {
        starts.push(nowMs);
        return ended;
      });
    }
    expect(starts.slice(0, 9)).toEqual([20, 60, 140, 300, 620, 1260, 2540, 4540, 6540]);
  });
});

describe("upgrading", () => {
  test("the monitor that is upgraded gets a whole search's time, and no other is started", () => {
    const searching = upgrade(startedAt(0, running), 5_000, running);
    expect(searching).toMatchObject({ state: "searching", deadlineMs: 35_000 });
    expect(startIfDue(searching, 19_999, noStart)).toBe(searching);
  });

  test("another monitor is started when the upgraded one has ended", () => {
    const next = startIfDue(upgrade(search(0), 0, ended), 20, () => running);
    expect(next).toMatchObject({ state: "searching", candidate: { sinceMs: 20 } });
  });

  test("monitors that were killed before the upgrade are not killed again after it", () => {
    const verdict = unanswered(search(0), "silent", 0);
    if (verdict.do !== "retry") throw new Error("the search failed");
    const searching = upgrade(verdict.next, 100, running);
    expect(unanswered(searching, "silent", 200)).toEqual({ do: "fail" });
  });
});

describe("an attempt without an answer", () => {
  test("is repeated until the deadline", () => {
    const searching = search(0);
    expect(unanswered(searching, "none", 30_000)).toEqual({ do: "retry", next: searching });
  });

  test("after the deadline, strangers are killed and the time begins again", () => {
    const verdict = unanswered(search(0), "none", 30_001);
    expect(verdict).toMatchObject({ do: "retry", oust: "strangers" });
    expect(verdict).toMatchObject({ next: { hasOusted: true, deadlineMs: 60_001 } });
  });

  test("a monitor that hangs has all of them killed at once", () => {
    const verdict = unanswered(search(0), "silent", 1);
    expect(verdict).toMatchObject({ do: "retry", oust: "all", next: { deadlineMs: 30_001 } });
  });

  test.each([
    ["none", 29_999, "retry"],
    ["none", 30_002, "fail"],
    ["silent", 2, "fail"],
  ] as const)("once monitors were killed, %s at %i ms means %s", (outcome, atMs, expected) => {
    const searching = { ...search(0), hasOusted: true };
    expect(unanswered(searching, outcome, atMs).do).toBe(expected);
  });
});

describe("the end of a search or a connection", () => {
  const connected: Connection<string> = { state: "connected", socket: "a", pid: 1 };
  const closed: Connection<string> = { state: "closed" };
  const disconnected: Connection<string> = { state: "disconnected" };

  test.each([
    ["a search", search(0)],
    ["an upgrade", upgrade(search(0), 0, running)],
  ])("the failure of %s leaves no connection", (_, searching) =>
    expect(searchFailed(searching)).toEqual({ state: "disconnected" }),
  );

  test.each([connected, closed, disconnected])(
    "a failure after the search has ended leaves it $state",
    (connection) => expect(searchFailed(connection)).toBe(connection),
  );

  test("the serving monitor's socket closes: the connection is lost", () => {
    expect(socketClosed(connected, "a")).toEqual({ state: "disconnected" });
  });

  test("a socket that only greeted closes: the connection stays", () => {
    expect(socketClosed(connected, "b")).toBe(connected);
  });

  test.each([search(0), closed, disconnected])("a socket closes while $state", (connection) => {
    expect(socketClosed(connection as Connection<string>, "a")).toBe(connection);
  });
});
