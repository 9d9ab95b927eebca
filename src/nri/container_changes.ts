// Keeps what plugins changed in a container's spec, field by field (isulad-ts nri diff).
//
// Decision: the changes are a file in the container's bundle. It takes no memory, outlives the daemon, and goes
// with the container. A power loss may cost it: config.json, which it explains, is not flushed either.
import { join } from "node:path";
import * as v from "valibot";
import { nowMs } from "../base/clock.ts";
import { errnoOf, messageOf } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { KeyedLock } from "../base/keyed_lock.ts";
import type { Log } from "../base/log.ts";
import { shorten } from "../base/text.ts";
import { checked } from "../base/schema.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import type { OciResources, OciSpec } from "../spec/oci.ts";
import { ociResources } from "../spec/resources.ts";
import type { HostInfo } from "../spec/spec_inputs.ts";
import { resourceChanges, specChanges, type FieldChange } from "../spec/spec_changes.ts";
import { readTextBounded, writeFileAtomic } from "../sys/file.ts";
import type { ResourceChange } from "./convert.ts";
import type { PluginStep } from "./host.ts";

/** Changes of one container that are kept: those of its creation, and the newest updates. */
export const changesMax = 32;
/** Of one change, in JSON. */
export const changeBytesMax = 16 << 10;
/** Of one value; a longer one is a string with its beginning and end. */
const valueBytesMax = 1_000;
const fileBytesMax = 2 * changesMax * changeBytesMax;

const changeSchema = v.object({
  atMs: v.number(),
  plugin: v.string(),
  /** CreateContainer, UpdateContainerResources; UpdateContainers: the plugin's own. */
  event: v.string(),
  /** Values as JSON; absent: the field was, or is, not set. */
  fields: v.array(
    v.object({ path: v.string(), before: v.optional(v.string()), after: v.optional(v.string()) }),
  ),
  /** Changed fields that are left out. */
  more: v.number(),
});
const fileSchema = v.object({
  version: v.literal(1),
  changes: v.array(changeSchema),
  dropped: v.number(),
});

/** One plugin's change. */
export type NriChange = v.InferOutput<typeof changeSchema>;
type NriChanges = v.InferOutput<typeof fileSchema>;

/** folder: the container's, which has its bundle. */
type Kept = { folder: string; log: Log };

const none: NriChanges = { version: 1, changes: [], dropped: 0 };
const adding = new KeyedLock("NRI changes of container");

/** specs: after each plugin that changed something; undefined: it is not known. */
export function creationChanges(
  before: OciSpec,
  specs: readonly PluginStep<OciSpec | undefined>[],
): NriChange[] {
  let from = before;
  return specs.flatMap(({ plugin, result: to }) => {
    const fields = to === undefined ? [] : specChanges(from, to);
    from = to ?? from;
    return newChange(plugin, "CreateContainer", fields);
  });
}

/** Compares CRI's request with what each plugin has made of it. */
export function requestChanges(
  host: HostInfo,
  requested: LinuxContainerResources,
  steps: readonly PluginStep<ResourceChange>[],
): NriChange[] {
  let from: Partial<OciResources> = ociResources(requested, [], host);
  return steps.flatMap(({ plugin, result: { resources, pidsLimit } }) => {
    const pids = pidsLimit === undefined ? {} : { pids: { limit: pidsLimit } };
    const to = { ...ociResources(resources, [], host), ...pids };
    const fields = resourceChanges(from, to);
    from = to;
    return newChange(plugin, "UpdateContainerResources", fields);
  });
}

export function ownChange(plugin: string, before: OciResources, after: OciResources): NriChange[] {
  return newChange(plugin, "UpdateContainers", resourceChanges(before, after));
}

/** Returns no change if there are no fields. */
function newChange(
  plugin: string,
  event: NriChange["event"],
  changed: readonly FieldChange[],
): NriChange[] {
  if (changed.length === 0) return [];
  const fields: NriChange["fields"] = [];
  let bytes = 0;
  for (const { path, ...values } of changed) {
    const field = {
      path: shorten(path, valueBytesMax),
      ...("before" in values ? { before: valueText(values.before) } : {}),
      ...("after" in values ? { after: valueText(values.after) } : {}),
    };
    bytes += Buffer.byteLength(jsonText(field));
    if (bytes > changeBytesMax) break;
    fields.push(field);
  }
  const more = changed.length - fields.length;
  return [{ atMs: Math.trunc(nowMs()), plugin, event, fields, more }];
}

function valueText(value: unknown): string {
  const text = jsonText(value);
  if (Buffer.byteLength(text) <= valueBytesMax) return text;
  return jsonText(shorten(typeof value === "string" ? value : text, valueBytesMax));
}

/**
 * Adds changes to those that are kept with the container. Never throws: the container is created or updated,
 * and this only explains it.
 */
export async function addChanges({ folder, log }: Kept, changes: () => NriChange[]): Promise<void> {
  try {
    const added = changes();
    if (added.length === 0) return;
    using _ = await adding.acquire(folder);
    const old = readOrNone({ folder, log });
    const all = bounded({ ...old, changes: [...old.changes, ...added] });
    await writeFileAtomic(fileOf(folder), jsonText(all));
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return; // the container was removed meanwhile
    const fields = { folder, error: messageOf(error) };
    log.warn("NRI changes of a container are not kept for isulad-ts nri diff", fields);
  }
}

/** Drops the oldest updates first. */
function bounded({ changes, dropped, ...rest }: NriChanges): NriChanges {
  const kept = [...changes];
  while (kept.length > changesMax) {
    const oldest = kept.findIndex(({ event }) => event !== "CreateContainer");
    kept.splice(oldest < 0 ? kept.length - 1 : oldest, 1);
  }
  return { ...rest, changes: kept, dropped: dropped + changes.length - kept.length };
}

function fileOf(folder: string): string {
  return join(folder, "nri_changes.json");
}

/** folder: the container's. @throws Error for a file that cannot be read or is damaged. */
export function readChanges(folder: string): NriChanges {
  const path = fileOf(folder);
  try {
    return checked(fileSchema, trustedJsonValue(readTextBounded(path, fileBytesMax)));
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return none;
    throw new Error(`cannot read ${path}: ${messageOf(error)}`, { cause: error });
  }
}

/** A damaged file, as after a power loss, begins anew. */
function readOrNone({ folder, log }: Kept): NriChanges {
  try {
    return readChanges(folder);
  } catch (error) {
    const fields = { folder, error: messageOf(error) };
    log.warn("the earlier NRI changes of a container cannot be read", fields);
    return none;
  }
}
