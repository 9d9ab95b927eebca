// Tests what ends the wait of a created container for its start.
import { expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import { silentLog } from "../../../src/base/log.ts";
import type { Creation } from "../../../src/monitor/creation.ts";
import { HeldStarts } from "../../../src/monitor/held_starts.ts";
import { PendingStarts } from "../../../src/monitor/pending_starts.ts";
import type { StartRequest } from "../../../src/monitor/protocol.ts";
import { failure, until } from "../../expect.ts";

const started = { pid: 7, startedAtNs: "1" };

/** Holds one container, whose creation ends with the given promise. */
function hold({ timeoutMs = 120_000, isMade = Promise.resolve() } = {}) {
  const starts = new PendingStarts();
  const held = new HeldStarts(starts, silentLog());
  const gone = new AbortController();
  const undone: string[] = [];
  const create = async () => {
    await isMade;
    const undo = new AsyncDisposableStack();
    undo.defer(() => void undone.push("undone"));
    return { record: { id: "c" }, undo } as unknown as Creation;
  };
  const request = { id: "c", timeoutMs } as StartRequest;
  const created = held.create(request, gone.signal, create);
  const start = () => held.start("c", async () => started);
  return { starts, held, gone, undone, created, start };
}

test("its start", async () => {
  const { created, start, starts, gone, undone } = hold();
  await created;
  const awaited = starts.join("c");
  expect(await start()).toEqual(started);
  expect(await awaited).toEqual(started);
  expect(starts.has("c")).toBe(false);
  gone.abort();
  expect(undone).toEqual([]);
});

test("a start that fails, also for who waits for it", async () => {
  const { created, held, starts } = hold();
  await created;
  const awaited = failure(starts.join("c"));
  const start = held.start("c", () => Promise.reject(new CriError("UNKNOWN", "no")));
  expect((await failure(start)).message).toBe("no");
  expect((await awaited).message).toBe("no");
  expect(starts.has("c")).toBe(false);
});

test("its removal", async () => {
  const { created, held, start, starts, undone } = hold();
  await created;
  const awaited = failure(starts.join("c"));
  await held.undo("c", "it is removed");
  expect(undone).toEqual(["undone"]);
  expect((await awaited).message).toContain("it is removed");
  expect((await failure(start())).code).toBe("FAILED_PRECONDITION");
});

test("its time limit", async () => {
  const { created, start, starts, undone } = hold({ timeoutMs: 10 });
  await created;
  await until("its creation is undone", () => !starts.has("c"));
  expect(undone).toEqual(["undone"]);
  expect((await failure(start())).code).toBe("FAILED_PRECONDITION");
});

test("the end of the daemon's connection, also amid the creation", async () => {
  const made = Promise.withResolvers<void>();
  const amid = hold({ isMade: made.promise });
  amid.gone.abort();
  made.resolve();
  expect((await failure(amid.created)).message).toContain("has disconnected");
  expect(amid.undone).toEqual(["undone"]);
  const after = hold();
  await after.created;
  after.gone.abort();
  await until("its creation is undone", () => !after.starts.has("c"));
  expect(after.undone).toEqual(["undone"]);
});

test("a creation that fails", async () => {
  const { created, held, starts } = hold({
    isMade: Promise.reject(new CriError("UNKNOWN", "no runtime")),
  });
  expect((await failure(created)).message).toBe("no runtime");
  expect(starts.has("c")).toBe(false);
  await held.undo("c", "it is removed");
});
