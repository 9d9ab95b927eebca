// Tests what is left of a container's records when their removal is cut off.
import { expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RecordFolder } from "../../../src/monitor/records.ts";

test("a removal that ends before the records are gone has removed the pin", async () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-records-"));
  try {
    const records = new RecordFolder(folder);
    await records.make();
    writeFileSync(records.pinOf("c1"), "");
    mkdirSync(join(folder, "containers/c1.json")); // cannot be removed as a file
    const failed = await records.remove("c1").catch((error: Error) => error);
    expect(failed).toBeInstanceOf(Error);
    expect(existsSync(records.pinOf("c1"))).toBe(false);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
