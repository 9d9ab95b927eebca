// Tests that EventBus delivers each event once and in order, and ends subscribers that stall.
import { describe, expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import { EventBus } from "../../../src/base/event_bus.ts";

const never = new AbortController().signal;
const open = (eventsMax = 3) => new EventBus<number>({ eventsMax, subscribersMax: 2 });
const settled = () => Bun.sleep(1);

/** Starts to collect; `pause` holds deliveries back. */
function collect(mailbox: EventBus<number>, signal = never, pause?: Promise<void>) {
  const seen: number[] = [];
  const subscription = mailbox.subscribe();
  const end = subscription
    .forward(async (event) => {
      seen.push(event);
      await pause;
    }, signal)
    .catch((error: unknown) => error as CriError);
  return { seen, end, subscription };
}

describe("EventBus", () => {
  test("gives each subscriber each event once, in order, from its subscription on", async () => {
    const mailbox = open();
    mailbox.publish(0);
    expect(mailbox.isWatched).toBe(false);
    const first = collect(mailbox);
    expect(mailbox.isWatched).toBe(true);
    mailbox.publish(1);
    mailbox.publish(2);
    const second = collect(mailbox);
    await settled();
    for (const event of [3, 4, 5]) mailbox.publish(event);
    await settled();
    expect(first.seen).toEqual([1, 2, 3, 4, 5]);
    expect(second.seen).toEqual([3, 4, 5]);
  });

  test("ends a stalled subscriber with RESOURCE_EXHAUSTED, and no other notices", async () => {
    const mailbox = open(3);
    const stalled = collect(mailbox, never, new Promise(() => {}));
    const other = collect(mailbox);
    for (let event = 1; event <= 10; event++) {
      mailbox.publish(event);
      await settled();
    }
    expect(await stalled.end).toMatchObject({ code: "RESOURCE_EXHAUSTED" });
    expect(stalled.seen).toEqual([1]);
    expect(other.seen).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    collect(mailbox); // its place is free again
  });

  test("counts an event that is being delivered as gone, and the bound exactly", async () => {
    const mailbox = open(3);
    const release = Promise.withResolvers<void>();
    const slow = collect(mailbox, never, release.promise);
    mailbox.publish(1);
    await settled();
    for (const event of [2, 3, 4]) mailbox.publish(event);
    release.resolve();
    await settled();
    expect(slow.seen).toEqual([1, 2, 3, 4]);
  });

  test("refuses more subscribers than it may have", () => {
    const mailbox = open();
    const { subscription } = collect(mailbox);
    collect(mailbox);
    expect(() => mailbox.subscribe()).toThrow("2 clients listen to events already");
    subscription[Symbol.dispose]();
    mailbox.subscribe();
  });

  test("an abort or a failed delivery ends the subscription with that reason", async () => {
    const mailbox = open();
    const abort = new AbortController();
    const gone = collect(mailbox, abort.signal);
    const reason = new DOMException("the client has gone", "AbortError");
    abort.abort(reason);
    expect(await gone.end).toBe(reason as never);
    const failed = mailbox.subscribe().forward(() => Promise.reject(new Error("no")), never);
    mailbox.publish(1);
    expect(await failed.catch(String)).toBe("Error: no");
    expect(mailbox.isWatched).toBe(false);
  });

  test("close ends all with its reason, and refuses new ones", async () => {
    const mailbox = open();
    const one = collect(mailbox);
    mailbox.publish(1);
    await settled();
    mailbox.close(new CriError("UNAVAILABLE", "the end"));
    expect(await one.end).toMatchObject({ code: "UNAVAILABLE" });
    expect(() => mailbox.subscribe()).toThrow("the end");
  });
});
