// Applies rules that convert the keys of another program's configuration to those of daemon.json.
import * as v from "valibot";
import { findKey } from "../base/config_keys.ts";
import { clipped } from "../base/config_resolution.ts";
import { check } from "../base/schema.ts";

export type Tree = { [key: string]: unknown };

/** A value inside the source, by the names on its path. table: where it stands, with the values beside it. */
export type Leaf = { path: readonly string[]; value: unknown; table: Tree };

/** daemon.json as it grows, and the report: each key of the source with its equivalent, or why it has none. */
export type Migration = {
  values: Tree;
  report: { key: string; to?: string; why?: string }[];
};

export type Rule = {
  /** The key of daemon.json; absent: there is none. */
  to?: string;
  /** Why there is none. */
  why?: string;
  /** Returns the key of daemon.json that it has set, or why none. */
  apply: (leaf: Leaf, values: Tree) => string | { why: string };
};

/** A default of the source that daemon.json does not share: the source's key, daemon.json's, and the value there. */
export type Default = { from: string; to: string; value: unknown };

/** By path, joined by "/"; "*" stands for one name. */
export type Rules = Record<string, Rule>;

/** Returns the leaves of a source: what is no table, and empty tables. */
export function leavesOf(tree: Tree, path: readonly string[] = []): Leaf[] {
  return Object.entries(tree).flatMap(([name, value]): Leaf[] => {
    const at = [...path, name];
    const isTable = typeof value === "object" && value !== null && !Array.isArray(value);
    if (isTable && Object.keys(value).length > 0) return leavesOf(value as Tree, at);
    return [{ path: at, value: typeof value === "bigint" ? Number(value) : value, table: tree }];
  });
}

/** The key takes the value as it is. */
export function same(key: string): Rule {
  return converted(key, (value) => value);
}

/** The key takes the converted value if its kind accepts it. convert: returns undefined for what has no equivalent. */
export function converted(key: string, convert: (value: unknown) => unknown): Rule {
  const apply: Rule["apply"] = ({ value }, values) => {
    if (value === "") return { why: "it is empty: the default is the same or better" };
    const { schema, allowed } = findKey(key)!.kind;
    const own = convert(value);
    if (!check(schema, own).success) {
      return { why: `"${key}" must be ${allowed}, not ${clipped(own ?? value)}` };
    }
    values[key] = own;
    return key;
  };
  return { to: key, apply };
}

/** Adds to a list. */
export function added(key: string, convert: (leaf: Leaf) => string[]): Rule {
  const apply: Rule["apply"] = (leaf, values) => {
    const list = (values[key] as string[] | undefined) ?? [];
    const next = [...new Set([...list, ...convert(leaf)])];
    const rule = converted(key, () => next);
    return next.length === 0 ? { why: "it is empty" } : rule.apply(leaf, values);
  };
  return { to: key, apply };
}

/** The port of an address. */
export function portOf(value: unknown): number {
  return Number(String(value).replace(/^.*:/, ""));
}

/** Splits address and port of metrics; a text without an address means all of the node's addresses. */
export const metricsAddress: Rule = {
  to: "metrics-port",
  apply: (leaf, values) => {
    const port = converted("metrics-port", portOf).apply(leaf, values);
    const host = String(leaf.value).replace(/:\d+$/, "");
    if (typeof port !== "string" || host === "127.0.0.1") return port;
    const own = host.replace(/^\[(.*)\]$/, "$1");
    const address = converted("metrics-address", () => own).apply(leaf, values);
    return typeof address === "string"
      ? `${port}, ${address}`
      : `${port}, on 127.0.0.1: ${address.why}`;
  },
};

/** The kubelet's usual image is the other runtime's default; the built-in program needs none. */
export const pauseImage: Rule = {
  to: "pod-sandbox-image",
  apply: (leaf, values) =>
    /^(registry\.k8s\.io|k8s\.gcr\.io)\/pause[:@]/.test(String(leaf.value))
      ? { why: "a built-in program is the pause container, without an image" }
      : same("pod-sandbox-image").apply(leaf, values),
};

/** There is no equivalent. */
export function none(why: string): Rule {
  return { why, apply: () => ({ why }) };
}

/** The rule holds only while the table has `on` = true; else the value is without effect in the source, too. */
export function onlyWith(on: string, rule: Rule): Rule {
  const why = `it has no effect: ${on} is not true`;
  return {
    ...rule,
    apply: (leaf, values) => (leaf.table[on] === true ? rule.apply(leaf, values) : { why }),
  };
}

/**
 * Sets a field of an entry of a map, such as runtimes; `field` returns undefined for what the entry cannot have, or
 * why it cannot.
 */
export function inMap(
  key: string,
  field: (leaf: Leaf, entry: Tree) => string | { why: string } | undefined,
): Rule {
  const apply: Rule["apply"] = (leaf, values) => {
    const map = (values[key] ?? {}) as Record<string, Tree>;
    const name = leaf.path.at(entryDepth(leaf.path, key))!;
    const entry = { ...map[name] };
    const set = field(leaf, entry);
    if (set === undefined) return { why: `it is unset, or an entry of "${key}" has no such field` };
    if (typeof set !== "string") return set;
    const next = { ...map, [name]: entry };
    const { schema } = findKey(key)!.kind;
    // Entries become complete one field after the other: only what is there must be valid.
    const issue = v
      .safeParse(schema, next)
      .issues?.find(({ received }) => received !== "undefined");
    if (issue !== undefined) return { why: `"${key}" cannot have ${clipped(leaf.value)}` };
    values[key] = next;
    return `${key}.${name}.${set}`;
  };
  return { to: key, apply };
}

/** Where the entry's name is: after "runtimes", or after the source's name of the map. */
function entryDepth(path: readonly string[], key: string): number {
  return path.findLastIndex((name) => name.replaceAll("_", "-") === key) + 1;
}

type Source = { rules: Rules; fallback: string; defaults?: readonly Default[] };

/** Converts all leaves. Rules are searched in the order of their table; `fallback` tells why a key has none. */
export function migrate(
  leaves: readonly Leaf[],
  { rules, fallback, defaults = [] }: Source,
): Migration {
  const values: Tree = {};
  const compiled = Object.entries(rules).map(([path, rule]) => ({ path: path.split("/"), rule }));
  const report: Migration["report"] = leaves.map((leaf) => {
    const key = leaf.path.map((name) => (/^[\w-]+$/.test(name) ? name : `"${name}"`)).join(".");
    const found = compiled.find(({ path }) => matches(path, leaf.path));
    const outcome = found === undefined ? { why: fallback } : outcomeOf(found.rule, leaf, values);
    return typeof outcome === "string" ? { key, to: outcome } : { key, why: outcome.why };
  });
  for (const { from, to, value } of defaults) {
    const isOff = to === "disable-connections" && values["nri-support"] === false;
    if (to in values || isOff) continue;
    values[to] = value;
    report.push({ key: `${from} (its default)`, to });
  }
  return { values, report };
}

/** Applies a rule; an exception means that the source's value has another type than the rule expects. */
function outcomeOf(rule: Rule, leaf: Leaf, values: Tree): ReturnType<Rule["apply"]> {
  try {
    return rule.apply(leaf, values);
  } catch {
    return { why: `its value ${clipped(leaf.value)} is of no type that it may have` };
  }
}

/** "**" at the end of a rule stands for any rest. */
function matches(pattern: readonly string[], path: readonly string[]): boolean {
  const open = pattern.at(-1) === "**";
  const fixed = open ? pattern.slice(0, -1) : pattern;
  if (open ? path.length < fixed.length : path.length !== fixed.length) return false;
  return fixed.every((name, index) => name === "*" || name === path[index]);
}
