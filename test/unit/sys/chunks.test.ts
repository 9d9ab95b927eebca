// Tests chunks of files: their bytes, and which of them are freed.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { constants, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chunkSize, fileChunks, freeChunk } from "../../../src/sys/chunks.ts";
import { Descriptor } from "../../../src/sys/descriptor.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-chunks-"));
const path = join(folder, "file");
const bytes = randomBytes(1_000_000);

beforeAll(() => writeFileSync(path, bytes));
afterAll(() => rmSync(folder, { recursive: true }));

test.each([
  [0, Infinity],
  [0, chunkSize],
  [1, chunkSize + 1],
  [chunkSize - 1, 3 * chunkSize + 7],
  [bytes.length - 5, bytes.length + 5],
  [7, 7],
])("chunks of a file from %d to %d are its bytes", (start, end) => {
  using file = Descriptor.open(path, constants.O_RDONLY);
  const parts: Buffer[] = [];
  for (const chunk of fileChunks(file, { start, end })) {
    expect(chunk.length).toBeLessThanOrEqual(chunkSize);
    parts.push(Buffer.from(chunk));
    freeChunk(chunk);
  }
  expect(Buffer.concat(parts).equals(bytes.subarray(start, end))).toBe(true);
});

test("a whole buffer is freed; a part is not, as others may use the rest", () => {
  const buffer = Buffer.alloc(8, "a");
  freeChunk(buffer.subarray(1));
  freeChunk(buffer.subarray(0, 7));
  expect(buffer.toString()).toBe("aaaaaaaa");
  freeChunk(buffer);
  expect(buffer.length).toBe(0);
});
