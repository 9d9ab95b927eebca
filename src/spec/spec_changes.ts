// Compares two OCI specs field by field, or their resources. Pure.
import { jsonText } from "../base/json.ts";
import type { OciResources, OciSpec } from "./oci_types.ts";

/** A field by its path in config.json: "mounts[/data]". A side without a value: the field was not set. */
export type FieldChange = { path: string; before?: unknown; after?: unknown };

type Fields = { [name: string]: unknown };

/** Lists whose entries have a name; their order does not matter. */
const named: Record<string, (entry: never) => [name: string, value: unknown]> = {
  "process.env": (entry: string) => {
    const at = entry.indexOf("=");
    return at < 0 ? [entry, ""] : [entry.slice(0, at), entry.slice(at + 1)];
  },
  "process.rlimits": (entry: Fields) => [String(entry["type"]), entry],
  mounts: (entry: Fields) => [String(entry["destination"]), entry],
  "linux.devices": (entry: Fields) => [String(entry["path"]), entry],
  "linux.namespaces": (entry: Fields) => [String(entry["type"]), entry],
  "linux.resources.hugepageLimits": (entry: Fields) => [String(entry["pageSize"]), entry["limit"]],
};
/** Lists that grow: an added entry is a change of its own. */
const growing = /^(hooks\.\w+|linux\.resources\.devices)$/;
/** Maps whose keys are no fields of the specification. */
const maps = new Set([
  "annotations",
  "linux.sysctl",
  "linux.netDevices",
  "linux.resources.unified",
]);

export function specChanges(before: OciSpec, after: OciSpec): FieldChange[] {
  return changesOf("", before, after);
}

/** The paths are those of the whole spec. */
export function resourceChanges(
  before: Partial<OciResources>,
  after: Partial<OciResources>,
): FieldChange[] {
  return changesOf("linux.resources", before, after);
}

function changesOf(path: string, before: unknown, after: unknown): FieldChange[] {
  if (before === after) return []; // specs share what no plugin changed
  const some = before ?? after;
  if (Array.isArray(some)) return listChanges(path, before, after);
  if (isObject(some)) {
    const join = maps.has(path) ? inBrackets : afterDot;
    const [old, now] = [before ?? {}, after ?? {}] as [Fields, Fields];
    return fieldChanges(old, now, (name) => join(path, name));
  }
  return wholeChange(path, before, after);
}

function listChanges(path: string, before: unknown, after: unknown): FieldChange[] {
  const [old, now] = [before ?? [], after ?? []] as [unknown[], unknown[]];
  const nameOf = named[path];
  if (nameOf !== undefined) {
    const entries = (list: unknown[]) =>
      Object.fromEntries(list.map((one) => nameOf(one as never)));
    return entryChanges(path, entries(old), entries(now));
  }
  const isLonger = jsonText(now.slice(0, old.length)) === jsonText(old);
  if (growing.test(path) && isLonger) {
    const added = now.slice(old.length);
    return added.map((value, i) => ({ path: `${path}[${old.length + i}]`, after: value }));
  }
  return old.length === 0 && now.length === 0 ? [] : wholeChange(path, before, after);
}

/** An added or removed entry is one change; in a changed entry the fields are compared. */
function entryChanges(path: string, before: Fields, after: Fields): FieldChange[] {
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) => {
    const at = inBrackets(path, name);
    const [old, now] = [own(before, name), own(after, name)];
    return isObject(old) && isObject(now) ? changesOf(at, old, now) : wholeChange(at, old, now);
  });
}

function fieldChanges(
  before: Fields,
  after: Fields,
  pathOf: (name: string) => string,
): FieldChange[] {
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...names].flatMap((name) => changesOf(pathOf(name), own(before, name), own(after, name)));
}

function wholeChange(path: string, before: unknown, after: unknown): FieldChange[] {
  if (jsonText(before) === jsonText(after)) return [];
  const change: FieldChange = { path };
  if (before !== undefined) change.before = before;
  if (after !== undefined) change.after = after;
  return [change];
}

/** Plugins choose the names of some entries: "constructor" is one. */
function own(fields: Fields, name: string): unknown {
  return Object.hasOwn(fields, name) ? fields[name] : undefined;
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function afterDot(path: string, name: string): string {
  return path === "" ? name : `${path}.${name}`;
}

function inBrackets(path: string, name: string): string {
  return `${path}[${name}]`;
}
