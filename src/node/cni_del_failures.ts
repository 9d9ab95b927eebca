// Records how long CNI DEL of a pod has been failing: the sum of the times between failures, by uptime.
// The wall clock is unsuitable: setting it would abandon a DEL at once, or never.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { jsonText, jsonValue } from "../base/json.ts";
import { readTextIfExists, writeFileAtomic } from "../sys/file.ts";
import { type BootTime, bootTime } from "../sys/uptime.ts";

const Failures = v.object({ bootId: v.string(), uptimeMs: v.number(), failedForMs: v.number() });

/** Retries are at most an hour apart (recovery/sweep.ts); a longer pause means that nobody tried. */
const pauseMsMax = 2 * 60 * 60_000;

export function delFailureFile(dir: string, id: string): string {
  return join(dir, "failing", id);
}

/** Records a failure; returns how long DEL of the pod has been failing, 0 at its first failure. */
export async function recordDelFailure(
  dir: string,
  id: string,
  now: BootTime = bootTime(),
): Promise<number> {
  const path = delFailureFile(dir, id);
  const last = parse((await readTextIfExists(path)) ?? "");
  // Downtime of the node does not count.
  const pauseMs = last?.bootId === now.bootId ? now.uptimeMs - last.uptimeMs : 0;
  const failedForMs = (last?.failedForMs ?? 0) + Math.min(Math.max(pauseMs, 0), pauseMsMax);
  await mkdir(join(dir, "failing"), { recursive: true, mode: 0o700 });
  await writeFileAtomic(path, jsonText({ ...now, failedForMs }));
  return failedForMs;
}

/** Returns undefined for a missing or damaged record; the count then restarts at 0. */
function parse(text: string): v.InferOutput<typeof Failures> | undefined {
  try {
    return v.parse(Failures, jsonValue(text));
  } catch {
    return undefined;
  }
}
