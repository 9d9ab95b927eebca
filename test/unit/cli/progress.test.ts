// Tests the lines that show layers' progress.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import {
  layerLine,
  layerLines,
  type LayerView,
  plainLine,
  titleLine,
} from "../../../src/cli/progress.ts";
import { isulad } from "../../../src/proto/messages.js";

const { LAYER_DONE, LAYER_MOVING, LAYER_PRESENT, LAYER_WAITING } = isulad.v1.LayerState;

function view(state: isulad.v1.LayerState, doneBytes = 0, bytesPerSecond = 0): LayerView {
  const total_bytes = toLong(10_000_000);
  const digest = `sha256:${"0123456789abcdef".repeat(4)}`;
  return { digest, state, done_bytes: toLong(doneBytes), total_bytes, bytesPerSecond };
}

test.each([
  [LAYER_WAITING, "0123456789ab waiting 10MB"],
  [LAYER_DONE, "0123456789ab done 10MB"],
  [LAYER_PRESENT, "0123456789ab already present"],
])("a layer in state %d: %s", (state, line) => {
  expect(layerLine(view(state), 80)).toBe(line);
});

test("a moving layer has a bar, bytes, rate and time left", () => {
  const bar = "[=============            ]";
  expect(layerLine(view(LAYER_MOVING, 5_000_000, 1_000_000), 80)).toBe(
    `0123456789ab ${bar}    5MB/10MB      1MB/s 5s left`,
  );
  expect(layerLine(view(LAYER_MOVING), 80)).toBe(
    `0123456789ab [${" ".repeat(25)}]     0B/10MB       0B/s`,
  );
  const left = (bytesPerSecond: number) =>
    layerLine(view(LAYER_MOVING, 0, bytesPerSecond), 80)
      .split(" ")
      .at(-2);
  expect([left(100_000), left(1_000)]).toEqual(["1m40s", "2h46m"]);
});

test("a line fits the terminal: the bar is dropped first, then the time", () => {
  const line = (columns: number) => layerLine(view(LAYER_MOVING, 5_000_000, 1_000_000), columns);
  expect(line(45)).toBe("0123456789ab 5MB/10MB 1MB/s 5s left");
  expect(line(30)).toBe("0123456789ab 5MB/10MB 1MB/s");
  expect(line(20)).toBe("0123456789ab");
  for (const state of [LAYER_WAITING, LAYER_MOVING, LAYER_DONE, LAYER_PRESENT]) {
    for (const columns of [2, 5, 10, 20, 40, 60, 80, 100]) {
      expect(layerLine(view(state, 5, 5), columns).length).toBeLessThan(columns);
    }
  }
});

test("a title that is too long keeps the end of the image's name", () => {
  const title = "Pulling registry.example.com/team/collector-contrib:v0.114.0";
  expect(titleLine(title, 80)).toBe(title);
  expect(titleLine(title, 40)).toBe("Pulling …eam/collector-contrib:v0.114.0");
  for (const columns of [1, 5, 10]) expect(titleLine(title, columns).length).toBeLessThan(columns);
});

test("if layers exceed the terminal, moving ones are shown and the others counted", () => {
  const many = [LAYER_DONE, LAYER_PRESENT, LAYER_MOVING, LAYER_MOVING, LAYER_WAITING].map((state) =>
    view(state, 5),
  );
  expect(layerLines(many, { columns: 80, rows: 5 })).toHaveLength(5);
  const lines = layerLines(many, { columns: 80, rows: 4 });
  expect(lines).toHaveLength(3);
  expect(lines[2]).toBe("2 of 5 layers done, 1 waiting");
  expect(layerLines(many, { columns: 80, rows: 2 })).toHaveLength(2);
});

test("without a terminal a layer has a line when it starts and when it is done", () => {
  expect([LAYER_MOVING, LAYER_DONE, LAYER_PRESENT].map((state) => plainLine(view(state)))).toEqual([
    "0123456789ab: 10MB",
    "0123456789ab: 10MB, done",
    "0123456789ab: already present",
  ]);
});
