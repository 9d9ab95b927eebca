// Tests that calls wait for exits, stop signals are sent once, and NRI plugins get each event that they lack.
import { describe, expect, test } from "bun:test";
import { ExitWaiters } from "../../../src/state/exit_waiters.ts";
import { NriLifecycle } from "../../../src/nri/lifecycle.ts";

const never = new AbortController().signal;

describe("ExitWaiters", () => {
  test("wakes all waiters of a container at its exit, and nobody else", async () => {
    const exits = new ExitWaiters();
    const waiting = [exits.wait("a", 60_000, never), exits.wait("a", 60_000, never)];
    const other = exits.wait("b", 20, never);
    exits.exited("a");
    expect(await Promise.all(waiting)).toEqual([true, true]);
    expect(await other).toBe(false);
  });

  test("ends a wait with the caller's signal, also if it aborted before", async () => {
    const exits = new ExitWaiters();
    const cancel = new AbortController();
    const waiting = exits.wait("a", 60_000, cancel.signal);
    cancel.abort(new DOMException("cancelled", "AbortError"));
    expect(waiting).rejects.toMatchObject({ code: "CANCELLED" });
    expect(exits.wait("a", 60_000, cancel.signal)).rejects.toMatchObject({ code: "CANCELLED" });
  });

  test("tells a watch of an exit since it began, and only of that container's", () => {
    const exits = new ExitWaiters();
    exits.exited("a");
    using watch = exits.watch("a");
    exits.exited("b");
    expect(watch.hasExited).toBe(false);
    exits.exited("a");
    expect(watch.hasExited).toBe(true);
  });

  test("sends a signal once until the exit, and again after a failure", async () => {
    const exits = new ExitWaiters();
    let sent = 0;
    const send = async () => void sent++;
    await Promise.all([exits.signalOnce("a", send), exits.signalOnce("a", send)]);
    expect(sent).toBe(1);
    exits.exited("a");
    await exits.signalOnce("a", send);
    expect(sent).toBe(2);
    const failing = exits.signalOnce("b", () => Promise.reject(new Error("no")));
    expect(failing).rejects.toThrow("no");
    await failing.catch(() => {});
    await exits.signalOnce("b", send);
    expect(sent).toBe(3);
  });
});

describe("NriLifecycle", () => {
  test("owes each pod one stop and one removal", () => {
    const pods = new NriLifecycle();
    pods.began("p");
    expect([pods.isLive("p"), pods.stop("p"), pods.stop("p"), pods.isLive("p")]).toEqual([
      true,
      true,
      false,
      false,
    ]);
    expect([pods.remove("p"), pods.remove("p"), pods.stop("p")]).toEqual([true, false, false]);
  });

  test("owes no stop to one that had stopped before, and nothing to an unknown one", () => {
    const pods = new NriLifecycle();
    pods.began("p", "stopped");
    expect([pods.isLive("p"), pods.stop("p"), pods.remove("p")]).toEqual([false, false, true]);
    expect([pods.stop("q"), pods.remove("q")]).toEqual([false, false]);
  });
});
