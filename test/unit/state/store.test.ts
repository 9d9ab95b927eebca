// Tests the store of records: updates, loads after kill -9, and the files of changes.
import { afterAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RecordFiles } from "../../../src/state/record_files.ts";
import { Store, type StoreOptions } from "../../../src/state/store.ts";

type Thing = { id: string; name: string; createdAtNs: string; state: string };

/** A store of things with its folders in `dir`. */
function thingsIn(dir: string, more: Partial<StoreOptions<Thing>> = {}): Store<Thing> {
  return new Store({
    kind: "thing",
    version: 1,
    folder: join(dir, "graph"),
    changes: join(dir, "state"),
    toJson: (thing) => thing,
    fromJson: (json) => json as Thing,
    ...more,
  });
}

test("update lists a change that happened though the disk refuses it, and no other", async () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-store-"));
  const changes = join(folder, "no-folder");
  const problems: string[] = [];
  const things = thingsIn(folder, {
    folder,
    changes,
    onUnwritten: (problem) => problems.push(problem),
  });
  await things.put({ id: "a", name: "a", createdAtNs: "1", state: "runs" });
  writeFileSync(changes, ""); // no folder can be here
  const end = (old: Thing) => ({ ...old, state: "ended" });
  expect(await things.update("a", end).catch(() => "refused")).toBe("refused");
  expect(things.get("a").state).toBe("runs");
  await things.update("a", end, { happened: true });
  expect(things.get("a").state).toBe("ended");
  expect(problems).toHaveLength(1);
  expect(problems[0]).toContain(join(changes, "thing-a.json"));
  rmSync(folder, { recursive: true });
});

test("load removes what kill -9 left among the changes, and of no other kind", async () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-store-"));
  const changes = join(dir, "state");
  const things = thingsIn(dir);
  await things.load(join(dir, "aside"));
  await things.put({ id: "a", name: "a", createdAtNs: "1", state: "made" });
  await things.update("a", (old) => ({ ...old, state: "runs" }));
  const others = ["thing-a.json.0a1b.tmp", "thing-gone.json", "other-x.json"];
  for (const name of others) writeFileSync(join(changes, name), "{");
  const next = thingsIn(dir);
  expect(await next.load(join(dir, "aside"))).toEqual([]);
  expect(readdirSync(changes).sort()).toEqual(["other-x.json", "thing-a.json"]);
  expect(next.get("a").state).toBe("runs");
  rmSync(dir, { recursive: true });
});

test("load removes what was cut off amid its first record, and sets aside what has lost its own", async () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-store-"));
  const [folder, aside] = [join(dir, "graph"), join(dir, "aside")];
  const others = { empty: [], begun: ["thing.json.0a1b2c3d.tmp"], lost: ["config.json"] };
  for (const [id, names] of Object.entries(others)) {
    mkdirSync(join(folder, id), { recursive: true });
    for (const name of names) writeFileSync(join(folder, id, name), "{");
  }
  const things = thingsIn(dir);
  expect(await things.load(aside)).toEqual([
    expect.stringMatching(/^thing lost cannot be read \(it does not exist\): moved to /),
  ]);
  expect(readdirSync(folder)).toEqual([]);
  expect(readdirSync(aside)).toEqual([expect.stringMatching(/^thing-lost-/)]);
  rmSync(dir, { recursive: true });
});

test("release leaves a name alone that has another holder by now", async () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-store-"));
  const things = thingsIn(dir);
  things.reserve("web", "a");
  await things.put({ id: "a", name: "web", createdAtNs: "1", state: "runs" });
  await things.remove("a");
  things.reserve("web", "b"); // before who removed the first one is done
  things.release("web", "a");
  expect(things.knows("b")).toBe(true);
  expect(() => things.reserve("web", "c")).toThrow("reserved for thing b");
  things.release("web", "b");
  expect(things.knows("b")).toBe(false);
  rmSync(dir, { recursive: true });
});

test.each([
  ["a", "b"],
  ["b", "a"],
])(
  "load gives a name to the record in use (%s), not to one left to be rolled back (%s)",
  async (used, left) => {
    const dir = mkdtempSync(join(tmpdir(), "isulad-store-"));
    const open = () => thingsIn(dir, { isLeftover: ({ state }) => state === "creating" });
    const before = open();
    await before.write({ id: left, name: "web", createdAtNs: "1", state: "creating" });
    await before.put({ id: used, name: "web", createdAtNs: "2", state: "runs" });
    await before.write({ id: "c", name: "alone", createdAtNs: "3", state: "creating" });
    const things = open();
    expect(await things.load(join(dir, "aside"))).toEqual([]);
    expect(things.get(used).state).toBe("runs");
    expect(things.get(left).state).toBe("creating"); // for its rollback
    expect(() => things.reserve("alone", "d")).toThrow("reserved for thing c");
    await things.remove(left);
    expect(() => things.reserve("web", "d")).toThrow(`reserved for thing ${used}`);
    rmSync(dir, { recursive: true });
  },
);

describe("a store of changes", () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-store-"));
  const folder = join(dir, "graph");
  const changes = join(dir, "state");
  const open = () => thingsIn(dir);
  const thing = (id: string) => ({ id, name: id, createdAtNs: "1", state: "new" });
  const write = (id: string) =>
    writeFileSync(join(changes, `thing-${id}.json`), JSON.stringify(thing(id)));
  afterAll(() => rmSync(dir, { recursive: true }));

  test("flushes what has changed, and forgets what was removed meanwhile", async () => {
    const things = open();
    await things.load(join(dir, "aside"));
    for (const id of ["kept", "removed"]) await things.put(thing(id));
    await things.remove("removed");
    await things.flush();
    expect(readdirSync(join(folder, "kept")).toSorted()).toEqual([
      "thing.json",
      "thing.settled.json",
    ]);
    expect(readdirSync(folder)).toEqual(["kept"]);
  });

  test("restores a record whose folder is lost, and no other", async () => {
    for (const id of ["kept", "lost", "half"]) write(id);
    writeFileSync(join(changes, "other-lost.json"), "{}");
    writeFileSync(join(changes, "thing-bad.json"), "{");
    mkdirSync(join(folder, ".removing-half"));
    const things = open();
    const problems = await things.restoreStrays((stray) => ({ ...stray, state: "restored" }));
    expect(problems).toEqual([expect.stringContaining("thing bad cannot be restored")]);
    await things.load(join(dir, "aside"));
    expect(things.list().map(({ id, state }) => `${id} ${state}`)).toEqual([
      "kept new",
      "lost restored",
    ]);
    expect(await things.finishRemovals()).toEqual([]);
    expect(readdirSync(folder).toSorted()).toEqual(["kept", "lost"]);
  });
});

describe("RecordFiles", () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-record-"));
  const at = { folder: join(dir, "graph/a"), changes: join(dir, "state") };
  const open = () => new RecordFiles("thing", "a", at);
  const names = () => [readdirSync(at.folder), readdirSync(at.changes)];
  mkdirSync(at.changes);
  afterAll(() => rmSync(dir, { recursive: true }));

  test("the first record is in its folder, a change beside the others' changes", async () => {
    const files = open();
    await files.write("first", false);
    expect(names()).toEqual([["thing.json"], []]);
    await files.write("second", false);
    await files.write("third", false);
    expect(names()).toEqual([["thing.json"], ["thing-a.json"]]);
    expect(open().texts()).toEqual(["third", "first"]);
  });

  test("what is durable replaces the record and its change", async () => {
    const files = open();
    expect(files.texts()).toEqual(["third", "first"]);
    await files.write("fourth", true);
    expect(names()).toEqual([["thing.json"], []]);
    await files.write("fifth", false);
    expect(open().texts()).toEqual(["fifth", "fourth"]);
  });

  test("a change makes the folder of changes again if a cleaner has removed it", async () => {
    const files = open();
    files.texts();
    rmSync(at.changes, { recursive: true });
    await files.write("fifth", false);
    expect(names()).toEqual([["thing.json"], ["thing-a.json"]]);
  });

  test("a flushed change outlives the loss of state", async () => {
    const files = open();
    files.texts();
    await files.write("sixth", false);
    await files.flush("sixth");
    expect(open().texts()).toEqual(["sixth", "sixth", "fourth"]);
    files.removeChange();
    expect(open().texts()).toEqual(["sixth", "fourth"]);
    await files.write("seventh", true);
    expect(names()).toEqual([["thing.json"], []]);
  });
});
