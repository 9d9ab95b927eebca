// Tests that records are ordered newest first, whatever the clock does.
import { expect, test } from "bun:test";
import { nowNs } from "../../../src/base/clock.ts";
import { createdAfter, newestFirst, Ordered } from "../../../src/state/order.ts";

test("newestFirst() sorts by time as a number, and by id where the times are equal", () => {
  const record = (id: string, createdAtNs: string) => ({ id, createdAtNs });
  const records = [record("c", "9"), record("b", "10"), record("a", "10"), record("d", "11")];
  expect(records.toSorted(newestFirst).map(({ id }) => id)).toEqual(["d", "a", "b", "c"]);
});

test("createdAfter() is later than what is there, also when the wall clock was set back", () => {
  const ahead = nowNs() + 3_600_000_000_000n;
  expect(createdAfter([{ createdAtNs: "5" }, { createdAtNs: String(ahead) }])).toBe(
    String(ahead + 1n),
  );
  const before = nowNs();
  const now = BigInt(createdAfter([{ createdAtNs: "5" }]));
  expect(now >= before && now <= nowNs()).toBe(true);
});

test("a record that is replaced keeps its place, and one that is deleted leaves it", () => {
  const records = new Ordered<{ id: string; createdAtNs: string; text: string }>();
  for (const id of ["1", "3", "2"]) records.set({ id, createdAtNs: id, text: "old" });
  records.set({ id: "2", createdAtNs: "2", text: "new" });
  expect(records.list().map(({ id, text }) => id + text)).toEqual(["3old", "2new", "1old"]);
  records.delete("none");
  records.delete("3");
  expect(records.ids()).toEqual(["2", "1"]);
});
