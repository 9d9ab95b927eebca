// Records a container's shim in its bundle, for the next monitor. The file is named bootstrap.json, as in
// containerd's bundles, so that people find it.
import { join } from "node:path";
import * as v from "valibot";
import { codeOf } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { checked } from "../base/schema.ts";
import { readTextBounded, replaceInMemory } from "../sys/file.ts";
import { processState } from "../sys/process.ts";

const ShimFileSchema = v.object({
  /** Its executable, which cleans up after it. */
  program: v.string(),
  /** Of the Task service: 2 or 3. */
  version: v.number(),
  /** Of its unix socket. */
  path: v.string(),
  /** The shim's own; 0 where it did not tell. */
  pid: v.number(),
  /** Clock ticks since boot: identifies one process together with the pid. */
  pidStartTime: v.string(),
});
export type ShimFile = v.InferOutput<typeof ShimFileSchema>;

const fileBytesMax = 64 << 10;

export function isShimRunning({ pid, pidStartTime }: ShimFile): boolean {
  return pid !== 0 && processState(pid, pidStartTime) === "running";
}

/**
 * Whether the error of a call shows that the shim has ended, or that it does not know the container. One that runs
 * and refuses a connection hangs, and its listen queue is full.
 */
export function hasEnded(shim: ShimFile, error: unknown): boolean {
  const code = codeOf(error);
  return code === "NOT_FOUND" || (code === "UNAVAILABLE" && !isShimRunning(shim));
}

export function writeShimFile(bundle: string, shim: ShimFile): void {
  replaceInMemory(join(bundle, "bootstrap.json"), jsonText(shim));
}

/** Returns undefined for a missing or damaged file: the shim cannot be reached. */
export function readShimFile(bundle: string): ShimFile | undefined {
  try {
    const text = readTextBounded(join(bundle, "bootstrap.json"), fileBytesMax);
    return checked(ShimFileSchema, trustedJsonValue(text));
  } catch {
    return undefined;
  }
}
