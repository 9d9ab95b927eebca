// Tests that a line which is still being written is left out.
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { wholeLines } from "../whole_lines.ts";

test("wholeLines() leaves out the line that is being written, and a file that does not exist", () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-lines-"));
  try {
    const path = join(dir, "log");
    expect(wholeLines(path)).toEqual([]);
    writeFileSync(path, '{"event": "a"}\n\n{"event": "b"}\n{"eve');
    expect(wholeLines(path)).toEqual(['{"event": "a"}', '{"event": "b"}']);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
