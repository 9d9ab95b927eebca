// Tests when the bytes of a layer are reported.
import { expect, test } from "bun:test";
import { ByteProgress } from "../../../src/layer/layer_progress.ts";

const mib = 1 << 20;

test.each([
  ["a fast line: each MiB", 1, [mib, 2 * mib]],
  ["a thin line: each half second", 100, [5 * mib, 10 * mib].map((bytes) => bytes / 16)],
])("%s", (_, msPerChunk, expected) => {
  let nowMs = 0;
  const reported: number[] = [];
  const progress = new ByteProgress(
    (bytes) => reported.push(bytes),
    () => nowMs,
  );
  for (let chunk = 0; chunk < (msPerChunk === 1 ? 40 : 12); chunk++) {
    nowMs += msPerChunk;
    progress.add(mib / 16);
  }
  expect(reported).toEqual(expected);
});
