// Tests the lines that a pull writes to the log at its begin and its end.
import { expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import { createLog } from "../../../src/base/log.ts";
import { loggedPull } from "../../../src/image/pull_log.ts";
import type { ImageRecord } from "../../../src/image/records.ts";
import type { LayerProgress } from "../../../src/layer/layer_progress.ts";
import { failureOf } from "../fakes.ts";

function capture() {
  const lines: Record<string, unknown>[] = [];
  const write = (line: string) => lines.push(JSON.parse(line) as Record<string, unknown>);
  return { lines, log: createLog({ level: "info", format: "json", stream: { write } }) };
}

const layer = (state: LayerProgress["state"], doneBytes: number): LayerProgress => {
  return { digest: "sha256:1", state, doneBytes, totalBytes: 100 };
};

test("a pull has a line when it begins, and one when it ends with bytes and seconds", async () => {
  const { lines, log } = capture();
  const record = { id: "sha256:2" } as ImageRecord;
  const pulled = await loggedPull(log, "busybox", async (onProgress) => {
    expect(lines.map(({ msg }) => msg)).toEqual(["image pull begins"]);
    await Bun.sleep(20);
    onProgress({ image: "busybox", layers: [layer("moving", 1)] });
    onProgress({
      image: "busybox",
      layers: [layer("present", 100), layer("done", 50), layer("done", 7)],
    });
    return record;
  });
  expect(pulled).toBe(record);
  expect(lines).toHaveLength(2);
  expect(lines[0]).toMatchObject({ level: "info", image: "busybox" });
  expect(lines[1]).toMatchObject({
    msg: "image pulled",
    image: "busybox",
    id: "sha256:2",
    bytes: 57,
  });
  expect(lines[1]!["seconds"]).toBeGreaterThanOrEqual(0.019);
  expect(lines[1]!["seconds"]).toBeLessThan(60);
});

test("a pull that fails has its code and what it has received", async () => {
  const { lines, log } = capture();
  const failing = loggedPull(log, "busybox", (onProgress) => {
    onProgress({ image: "busybox", layers: [layer("moving", 30)] });
    return Promise.reject(new CriError("UNAVAILABLE", "no registry"));
  });
  expect(await failureOf(failing)).toBe("no registry");
  expect(lines[1]).toMatchObject({ msg: "image pull failed", code: "UNAVAILABLE", bytes: 30 });
});
