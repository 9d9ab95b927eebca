// Logs the begin and the end of each pull, with the bytes that it received.
import { codeOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { ImageProgress, OnProgress } from "../layer/layer_progress.ts";
import type { ImageRecord } from "./records.ts";

/** pull: gets a callback that it must call with its progress. The reason of a failure is the caller's to log. */
export async function loggedPull(
  log: Log,
  image: string,
  pull: (onProgress: OnProgress) => Promise<ImageRecord>,
): Promise<ImageRecord> {
  const beginMs = performance.now();
  let last: ImageProgress | undefined;
  const figures = () => ({
    bytes: receivedBytes(last),
    seconds: Math.round(performance.now() - beginMs) / 1000,
  });
  log.info("image pull begins", { image });
  try {
    const record = await pull((progress) => (last = progress));
    log.info("image pulled", { image, id: record.id, ...figures() });
    return record;
  } catch (error) {
    log.info("image pull failed", { image, code: codeOf(error), ...figures() });
    throw error;
  }
}

/** Layers that were on this node before count as nothing. */
function receivedBytes(progress: ImageProgress | undefined): number {
  const received = (progress?.layers ?? []).filter(({ state }) => state !== "present");
  return received.reduce((sum, { doneBytes }) => sum + doneBytes, 0);
}
