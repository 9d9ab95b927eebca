// Formats configurations: the effective values with their sources, the defaults, and the meaning of each key.
import type { Config, LoadedConfig } from "../base/config.ts";
import type { Key } from "../base/config_key.ts";
import { daemonKeys } from "../base/config_keys.ts";
import { nriKeys } from "../base/config_nri_keys.ts";
import { jsonText } from "../base/json.ts";
import { runtimeJson } from "../base/runtime_values.ts";

/** Formats the files in effect, and a table of KEY, VALUE (in the file's syntax) and FROM. */
export function configTable({ config, origin, warnings, files }: LoadedConfig): string {
  const rows: string[][] = [["KEY", "VALUE", "FROM"]];
  const add = (keys: Record<string, Key>, values: Record<string, unknown>) => {
    for (const [field, { key }] of Object.entries(keys)) {
      if (field in values) rows.push([key, shown(field, values[field]), origin.get(key) ?? ""]);
    }
  };
  const { nri, ...rest } = config;
  add(daemonKeys, rest);
  add(nriKeys, nri);
  const widths = [0, 1].map((c) => Math.max(...rows.map((row) => row[c]?.length ?? 0)));
  const lines = rows.map(([key = "", value = "", from = ""]) =>
    `${key.padEnd(widths[0] ?? 0)}  ${value.padEnd(widths[1] ?? 0)}  ${from}`.trimEnd(),
  );
  const head = files.length === 0 ? ["no file: all values are flags or defaults"] : files;
  return [
    ...head.map((text) => `# ${text}`),
    ...lines,
    ...warnings.map((w) => `# warning: ${w}`),
    "",
  ].join("\n");
}

function shown(field: string, value: unknown): string {
  if (field.endsWith("Ms")) return jsonText(`${Number(value)}ms`.replace(/000ms$/, "s"));
  if (field === "nativeUmask") return value === 0o027 ? '"secure"' : '"normal"';
  if (field === "runtimes") return shownRuntimes(value as Config["runtimes"]);
  if (field === "defaultUlimits") return shownUlimits(value as Config["defaultUlimits"]);
  return jsonText(value);
}

function shownRuntimes(runtimes: Config["runtimes"]): string {
  const entries = Object.entries(runtimes).map(([name, entry]) => [name, runtimeJson(entry)]);
  return jsonText(Object.fromEntries(entries));
}

function shownUlimits(ulimits: Config["defaultUlimits"]): string {
  const entries = ulimits.map(({ type, hard, soft }) => {
    const name = type.replace("RLIMIT_", "").toLowerCase();
    const signed = (limit: bigint) => Number(BigInt.asIntN(64, limit)); // "no limit" is -1
    return [name, { Name: name, Hard: signed(hard), Soft: signed(soft) }];
  });
  return jsonText(Object.fromEntries(entries));
}

/** Returns a daemon.json that has every key with its default; "" where the key is unset. */
export function defaultConfig(): string {
  const lines = defaults().map(({ key, value }) => `  "${key.key}": ${value}`);
  return `{\n${lines.join(",\n")}\n}\n`;
}

/** Returns each key with its default, meaning, allowed values, and what applies a change. */
export function explainedKeys(): string {
  const blocks = defaults().map(({ key, value }) =>
    [
      `"${key.key}": ${value}`,
      `    ${key.about}`,
      `    must be ${key.kind.allowed}`,
      `    ${key.live ? "applied by a reload" : "applied by a restart"}`,
      ...(key.also.length > 0 ? [`    also: ${key.also.join(", ")}`] : []),
    ].join("\n"),
  );
  return `${blocks.join("\n\n")}\n`;
}

function defaults(): { key: Key; value: string }[] {
  return Object.entries<Key>({ ...daemonKeys, ...nriKeys }).map(([field, key]) => ({
    key,
    value: shown(field, key.fallback),
  }));
}
