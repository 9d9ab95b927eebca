// Tests single-flight: who starts a run, who shares its result, and who cancels it.
import { expect, test } from "bun:test";
import { messageOf } from "../../../src/base/errors.ts";
import { CountedFlight, SingleFlight } from "../../../src/base/single_flight.ts";
import { failureOf } from "../fakes.ts";

const never = new AbortController().signal;
const stopped = new Error("the daemon stops");

test("calls with the same key share one run, and the next call starts another", async () => {
  const flight = new SingleFlight<number>();
  let runs = 0;
  const work = () => Promise.resolve(++runs);
  const joined = ["a", "a", "b"].map((key) => flight.join(key, never, work));
  expect(await Promise.all(joined)).toEqual([1, 1, 2]);
  expect(await flight.join("a", never, work)).toBe(3);
});

test("an error of the run reaches each caller", async () => {
  const flight = new SingleFlight<number>();
  const work = () => Promise.reject(new Error("it fails"));
  const joined = [1, 2].map(() => flight.join("a", never, work));
  expect(await Promise.all(joined.map((one) => one.catch(messageOf)))).toEqual([
    "it fails",
    "it fails",
  ]);
});

test("a caller that gives up leaves the run to the others", async () => {
  const flight = new SingleFlight<string>();
  const result = Promise.withResolvers<string>();
  const controller = new AbortController();
  const first = flight.join("a", never, () => result.promise);
  const second = flight.join("a", controller.signal, () => Promise.resolve("second run"));
  controller.abort();
  expect(await failureOf(second)).toContain("waiting for the same call");
  result.resolve("first run");
  expect(await first).toBe("first run");
});

test("a caller that still waits starts a run after one whose own caller gave up", async () => {
  const flight = new SingleFlight<string>();
  const result = Promise.withResolvers<string>();
  const controller = new AbortController();
  const first = flight.join("a", controller.signal, () => result.promise);
  const second = flight.join("a", never, () => Promise.resolve("second run"));
  controller.abort();
  result.reject(new Error("cancelled"));
  expect(await failureOf(first)).toContain("cancelled");
  expect(await second).toBe("second run");
});

test("the last caller that leaves a counted run cancels it, and waits for its end", async () => {
  const flight = new CountedFlight<string, { percent: number }>("pull");
  const controllers = [new AbortController(), new AbortController()];
  const rolledBack = Promise.withResolvers<void>();
  let signal: AbortSignal | undefined;
  const work = async (own: AbortSignal) => {
    signal = own;
    await rolledBack.promise;
    throw new Error("cancelled");
  };
  const callers = controllers.map((one) => flight.join("a", { signal: one.signal }, work));
  controllers[0]!.abort();
  expect(await failureOf(callers[0]!)).toContain("pull");
  expect(signal?.aborted).toBe(false);
  controllers[1]!.abort(stopped);
  const failed = callers[1]!.catch(messageOf);
  expect(await Promise.race([failed, Bun.sleep(5).then(() => "waits")])).toBe("waits");
  expect(signal?.reason).toBe(stopped);
  rolledBack.resolve();
  expect(await failed).toContain("pull: cancelled");
});

test("a caller after a cancelled run starts another", async () => {
  const flight = new CountedFlight<string, { percent: number }>("pull");
  const controller = new AbortController();
  const rolledBack = Promise.withResolvers<string>();
  const first = flight.join("a", { signal: controller.signal }, () => rolledBack.promise);
  controller.abort();
  await Bun.sleep(1);
  const second = flight.join("a", { signal: never }, () => Promise.resolve("second run"));
  expect(await second).toBe("second run");
  rolledBack.resolve("too late");
  expect(await failureOf(first)).toContain("cancelled");
});

test("a caller that joins late sees the newest progress first", async () => {
  const flight = new CountedFlight<string, { percent: number }>("pull");
  const result = Promise.withResolvers<string>();
  const seen: Record<string, number[]> = { early: [], late: [] };
  let report: (progress: { percent: number }) => void = () => {};
  const join = (name: string) =>
    flight.join(
      "a",
      { signal: never, onProgress: ({ percent }) => seen[name]!.push(percent) },
      (_, onProgress) => {
        report = onProgress;
        return result.promise;
      },
    );
  const early = join("early");
  report({ percent: 10 });
  report({ percent: 20 });
  const late = join("late");
  report({ percent: 30 });
  result.resolve("done");
  expect(await Promise.all([early, late])).toEqual(["done", "done"]);
  expect(seen).toEqual({ early: [10, 20, 30], late: [20, 30] });
});

test("end cancels every counted run and returns after their roll-back", async () => {
  const flight = new CountedFlight<string, { percent: number }>("pull");
  const ended: string[] = [];
  const work = (key: string) => async (signal: AbortSignal) => {
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    ended.push(key);
    throw signal.reason;
  };
  const joined = ["a", "b"].map((key) => flight.join(key, { signal: never }, work(key)));
  const failures = joined.map((one) => one.catch(messageOf));
  await flight.end(stopped);
  expect(ended).toEqual(["a", "b"]);
  for (const one of failures) expect(await one).toContain("the daemon stops");
});

test("a counted call whose signal has aborted already starts nothing", async () => {
  const flight = new CountedFlight<string, { percent: number }>("pull");
  let runs = 0;
  const caller = { signal: AbortSignal.abort() };
  const work = () => Promise.resolve(String(++runs));
  expect(await failureOf(flight.join("a", caller, work))).toContain("pull");
  expect(runs).toBe(0);
});
