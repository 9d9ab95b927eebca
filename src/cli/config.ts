// `isulad-ts config check FILE` and `isulad-ts config show`; and the daemon's flags, which are the
// keys of daemon.json.
import { defineCommand, type ArgsDef } from "citty";
import { loadConfig, type Config, type LoadedConfig } from "../base/config.ts";
import { daemonKeys, findKey, nriKeys, type Key } from "../base/config_keys.ts";
import { runtimeEntryKeys, type RuntimeEntry } from "../base/config_values.ts";
import { jsonText } from "../base/json.ts";
import { UsageError } from "./program.ts";

const fileArg = {
  type: "string",
  valueHint: "FILE",
  description: "configuration (default /etc/isulad/daemon.json)",
} as const;

/** For the usage text; the values are taken by parseFlags, which tells a flag that does not exist. */
export const configArgs: ArgsDef = {
  config: fileArg,
  ...Object.fromEntries(
    [...Object.values<Key>(daemonKeys), ...Object.values<Key>(nriKeys)].map((key) => [
      key.key,
      {
        type: key.kind.shape === "switch" ? "boolean" : "string",
        description: key.about,
      } as const,
    ]),
  ),
};

export type ParsedFlags = {
  file: string | undefined;
  flags: Record<string, string>;
  rest: string[];
};

/**
 * `--key value`, `--key=value`, or `--key` alone for a switch; a list may be given several times.
 * @throws UsageError when a value is missing.
 */
export function parseFlags(argv: readonly string[]): ParsedFlags {
  const parsed: ParsedFlags = { file: undefined, flags: {}, rest: [] };
  for (let i = 0; i < argv.length; i++) {
    const arg = argv[i] ?? "";
    if (!arg.startsWith("--") || arg === "--") {
      parsed.rest.push(arg);
      continue;
    }
    const [, name = "", inline] = /^--([^=]+)(?:=(.*))?$/s.exec(arg) ?? [];
    const key = findKey(name);
    let value = inline;
    if (value === undefined && key?.kind.shape === "switch") {
      value = /^(true|false|auto)$/.test(argv[i + 1] ?? "") ? argv[++i] : "true";
    }
    value ??= argv[++i];
    if (value === undefined) throw new UsageError(`--${name} needs a value`);
    if (name === "config") parsed.file = value;
    else addFlag(parsed.flags, { name: key?.key ?? name, value, many: key?.kind.shape === "list" });
  }
  return parsed;
}

function addFlag(
  flags: Record<string, string>,
  { name, value, many }: { name: string; value: string; many: boolean },
): void {
  const earlier = flags[name];
  flags[name] = many && earlier !== undefined ? `${earlier},${value}` : value;
}

const check = defineCommand({
  meta: { name: "check", description: "Say whether a daemon.json is right, and what is not" },
  args: { file: { type: "positional", valueHint: "FILE", description: "a daemon.json" } },
  run: ({ args }) => {
    const { warnings } = loadConfig(args.file);
    for (const warning of warnings) process.stdout.write(`warning: ${warning}\n`);
    process.stdout.write(`${args.file}: ok\n`);
  },
});

const show = defineCommand({
  meta: { name: "show", description: "The values in effect, and where each came from" },
  args: configArgs,
  run: ({ rawArgs }) => {
    const { file, flags, rest } = parseFlags(rawArgs);
    if (rest.length > 0) {
      throw new UsageError(`config show takes flags only, not "${rest.join(" ")}"`);
    }
    process.stdout.write(configTable(loadConfig(file, flags)));
  },
});

export const configCommand = defineCommand({
  meta: { name: "config", description: "Check a configuration, or show the one in effect" },
  subCommands: { check, show },
});

/** KEY, VALUE as it could stand in the file, and FROM. */
export function configTable({ config, origin, warnings, file }: LoadedConfig): string {
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
  const head = `# ${file ?? "no file: every value is a flag's or the default"}`;
  return [head, ...lines, ...warnings.map((w) => `# warning: ${w}`), ""].join("\n");
}

function shown(field: string, value: unknown): string {
  if (field.endsWith("Ms")) return jsonText(`${Number(value)}ms`.replace(/000ms$/, "s"));
  if (field === "nativeUmask") return value === 0o027 ? '"secure"' : '"normal"';
  if (field === "runtimes") return shownRuntimes(value as Config["runtimes"]);
  if (field === "defaultUlimits") return shownUlimits(value as Config["defaultUlimits"]);
  return jsonText(value);
}

function shownRuntimes(runtimes: Config["runtimes"]): string {
  const entries = Object.entries(runtimes).map(([name, entry]) => {
    const fields = Object.entries(runtimeEntryKeys) as [keyof RuntimeEntry, string][];
    return [name, Object.fromEntries(fields.map(([field, key]) => [key, entry[field]]))];
  });
  return jsonText(Object.fromEntries(entries));
}

function shownUlimits(ulimits: Config["defaultUlimits"]): string {
  const entries = ulimits.map(({ type, hard, soft }) => {
    const name = type.replace("RLIMIT_", "").toLowerCase();
    // As signed 64 bit, no limit is -1 again.
    return [
      name,
      { Name: name, Hard: Number(BigInt.asIntN(64, hard)), Soft: Number(BigInt.asIntN(64, soft)) },
    ];
  });
  return jsonText(Object.fromEntries(entries));
}
