// Tests on which processes a signal has an effect, and how long a stop signal waits for that.
import { expect, test } from "bun:test";
import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { takesSignal, untilHandled } from "../../../src/sys/process.ts";

const { SIGTERM, SIGKILL, SIGUSR1, SIGWINCH, SIGCHLD } = constants.signals;

type Masks = { blocked?: number; caught?: number; pids?: string };

/** The lines of /proc/PID/status that matter. */
function status({ blocked, caught, pids = "4711\t1" }: Masks): string {
  const mask = (signal?: number) =>
    (signal === undefined ? 0n : 1n << BigInt(signal - 1)).toString(16).padStart(16, "0");
  return `Name:\tsh\nNSpid:\t${pids}\nSigBlk:\t${mask(blocked)}\nSigCgt:\t${mask(caught)}\n`;
}

test.each<[string, Masks, number, boolean]>([
  ["the first of its namespace has no handler", {}, SIGTERM, false],
  ["the first of its namespace handles it", { caught: SIGTERM }, SIGTERM, true],
  ["the first of its namespace handles another", { caught: SIGUSR1 }, SIGTERM, false],
  ["the first of its namespace blocks it, as tini does", { blocked: SIGTERM }, SIGTERM, true],
  ["SIGKILL ends the first of its namespace", {}, SIGKILL, true],
  ["a real-time signal, without a handler", {}, 37, false],
  ["a real-time signal, handled", { caught: 37 }, 37, true],
  ["in the pod's namespace", { pids: "4711\t31" }, SIGTERM, true],
  ["in the node's namespace", { pids: "4711" }, SIGTERM, true],
  ["the first of a namespace within the pod's", { pids: "4711\t31\t1" }, SIGTERM, false],
  ["a pid that ends in 1", { pids: "4711\t31\t11" }, SIGTERM, true],
  ["SIGWINCH does nothing by default, and web servers use it", { pids: "7\t31" }, SIGWINCH, false],
  ["SIGWINCH, handled", { pids: "7\t31", caught: SIGWINCH }, SIGWINCH, true],
  ["SIGCHLD in the node's namespace", { pids: "7" }, SIGCHLD, false],
])("takesSignal(): %s", (_, masks, signal, expected) => {
  expect(takesSignal(status(masks), signal)).toBe(expected);
});

test("takesSignal() counts a process as the first of its namespace where the kernel does not tell", () => {
  expect(takesSignal("SigBlk:\t0000000000000000\nSigCgt:\t0000000000000000\n", SIGTERM)).toBe(
    false,
  );
});

test("a stop signal does not wait for a handler that is not needed, nor after the grace period", async () => {
  const child = Bun.spawn(["sleep", "600"]);
  try {
    const never = new AbortController().signal;
    const ofNode = untilHandled(child.pid, SIGTERM, never).then(() => "sent");
    expect(await Promise.race([ofNode, sleep(1_000, "late")])).toBe("sent");
    const grace = new AbortController();
    const needed = untilHandled(child.pid, SIGWINCH, grace.signal).then(() => "sent");
    grace.abort();
    expect(await Promise.race([needed, sleep(1_000, "late")])).toBe("sent");
  } finally {
    child.kill();
  }
});
