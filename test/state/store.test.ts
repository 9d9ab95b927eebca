import { describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RecordFiles } from "../../src/state/record_files.ts";
import { Store } from "../../src/state/store.ts";

type Thing = { id: string; name: string; state: string };

test("update lists a change that happened though the disk refuses it, and no other", async () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-store-"));
  const problems: string[] = [];
  const things = new Store<Thing>({
    kind: "thing",
    version: 1,
    folder,
    toJson: (thing) => thing,
    fromJson: (json) => json as Thing,
    onUnwritten: (problem) => problems.push(problem),
  });
  await things.put({ id: "a", name: "a", state: "runs" });
  rmSync(things.folderOf("a"), { recursive: true });
  writeFileSync(things.folderOf("a"), "no folder");
  const end = (old: Thing) => ({ ...old, state: "ended" });
  expect(await things.update("a", end).catch(() => "refused")).toBe("refused");
  expect(things.get("a").state).toBe("runs");
  await things.update("a", end, { happened: true });
  expect(things.get("a").state).toBe("ended");
  expect(problems).toHaveLength(1);
  expect(problems[0]).toContain(things.folderOf("a"));
  rmSync(folder, { recursive: true });
});

describe("RecordFiles", () => {
  const folder = join(mkdtempSync(join(tmpdir(), "isulad-record-")), "a");
  const names = () => readdirSync(folder).sort();

  test("a change has a file of its own, and the record before stays", async () => {
    const files = new RecordFiles(folder, "thing");
    await files.write("first", false);
    expect(names()).toEqual(["thing.json"]);
    await files.write("second", false);
    await files.write("third", false);
    expect(names()).toEqual(["thing.2.json", "thing.json"]);
    expect(files.texts()).toEqual(["third", "first"]);
  });

  test("what is durable replaces the record and its change", async () => {
    const files = new RecordFiles(folder, "thing");
    expect(files.texts()).toEqual(["third", "first"]);
    await files.write("fourth", true);
    expect(names()).toEqual(["thing.json"]);
    await files.write("fifth", false);
    expect(new RecordFiles(folder, "thing").texts()).toEqual(["fifth", "fourth"]);
    rmSync(folder, { recursive: true });
  });

  test("another kind's files, and what is no record, do not count", async () => {
    const files = new RecordFiles(folder, "thing");
    await files.write("first", false);
    for (const name of ["things.json", "thing.x.json", "thing.3.json.0a.tmp", "config.json"]) {
      writeFileSync(join(folder, name), "other");
    }
    expect(new RecordFiles(folder, "thing").texts()).toEqual(["first"]);
    rmSync(folder, { recursive: true });
  });
});
