// Measures for how long CNI DEL of a pod has been failing: the sum of the times between its failures, on
// the clock of the boot. The wall clock is no measure: setting it would give up at once, or never.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { jsonText, jsonValue } from "../base/json.ts";
import { readTextIfExists, writeFileAtomic } from "../sys/file.ts";
import { type BootTime, bootTime } from "../sys/uptime.ts";

const Failing = v.object({ bootId: v.string(), uptimeMs: v.number(), failedForMs: v.number() });

/** Two tries are an hour apart at most (zombies.ts): in a longer pause nobody tried. */
const pauseMsMax = 2 * 60 * 60_000;

export function failingFile(dir: string, id: string): string {
  return join(dir, "failing", id);
}

/** Records a failure; returns for how long DEL of the pod has been failing, 0 at its first failure. */
export async function failedForMs(
  dir: string,
  id: string,
  now: BootTime = bootTime(),
): Promise<number> {
  const path = failingFile(dir, id);
  const last = parse((await readTextIfExists(path)) ?? "");
  // Of a time in which the node was down nothing is known: it does not count.
  const pauseMs = last?.bootId === now.bootId ? now.uptimeMs - last.uptimeMs : 0;
  const failedForMs = (last?.failedForMs ?? 0) + Math.min(Math.max(pauseMs, 0), pauseMsMax);
  await mkdir(join(dir, "failing"), { recursive: true, mode: 0o700 });
  await writeFileAtomic(path, jsonText({ ...now, failedForMs }));
  return failedForMs;
}

/** undefined: what is there is no such record; the count begins anew. */
function parse(text: string): v.InferOutput<typeof Failing> | undefined {
  try {
    return v.parse(Failing, jsonValue(text));
  } catch {
    return undefined;
  }
}
