// Records how long CNI DEL of a pod has been failing, and decides when it is given up: after a day, or when an
// administrator asks for it. The time is the sum of the times between failures, by uptime.
// The wall clock is unsuitable: setting it would abandon a DEL at once, or never.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { checked } from "../base/schema.ts";
import { readTextIfExists, writeFileAtomic } from "../sys/file.ts";
import { type BootTime, bootTime } from "../sys/uptime.ts";

const Failures = v.object({ bootId: v.string(), uptimeMs: v.number(), failedForMs: v.number() });

/** Retries are at most an hour apart (recovery/sweep.ts); a longer pause means that nobody tried. */
const pauseMsMax = 2 * 60 * 60_000;
/** A DEL that has failed for this long is abandoned. */
export const abandonMs = 24 * 60 * 60_000;

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

/**
 * Records a failure; true: DEL of the pod is to be abandoned. false also if the failure cannot be recorded (disk full),
 * so that the caller retries.
 */
export async function hasFailedForLong(
  { cacheDir, log }: { cacheDir: string; log: Log },
  id: string,
): Promise<boolean> {
  try {
    return (await recordDelFailure(cacheDir, id)) >= abandonMs;
  } catch (error) {
    log.warn("cannot record the CNI DEL failure", { sandbox: id, error: messageOf(error) });
    return false;
  }
}

/**
 * Has the pod's DEL abandoned at its next failure. @throws CriError FAILED_PRECONDITION unless it has failed before: a
 * network that can be released must not be abandoned.
 */
export async function abandonAtNextFailure(dir: string, id: string): Promise<void> {
  const path = delFailureFile(dir, id);
  const last = parse((await readTextIfExists(path)) ?? "");
  if (last === undefined) {
    const message = `no CNI DEL of sandbox ${id} has failed: stop it without giving up its network`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  await writeFileAtomic(path, jsonText({ ...last, failedForMs: abandonMs }));
}

/** Adds to the error of a DEL what an administrator can do. */
export function withWayOut(cause: unknown, id: string): CriError {
  const wayOut = `isulad-ts rmp --abandon-network ${id} gives its addresses up`;
  const message = `${messageOf(cause)}; it is retried: correct the network's list or plugin, or else ${wayOut}`;
  return new CriError(codeOf(cause), message, { cause });
}

/** Returns undefined for a missing or damaged record; the count then restarts at 0. */
function parse(text: string): v.InferOutput<typeof Failures> | undefined {
  try {
    return checked(Failures, trustedJsonValue(text));
  } catch {
    return undefined;
  }
}
