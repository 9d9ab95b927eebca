import { expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
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
  expect(problems[0]).toContain(join(things.folderOf("a"), "thing.json"));
  rmSync(folder, { recursive: true });
});
