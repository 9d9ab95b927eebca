// Implements `isulad-ts config check`, `show` and `default`, and parses the daemon's flags (daemon.json's keys).
import { defineCommand, type ArgsDef } from "citty";
import { loadConfig, type Flags } from "../base/config.ts";
import type { Key } from "../base/config_key.ts";
import { allKeys, daemonKeys, findKey } from "../base/config_keys.ts";
import { nriKeys } from "../base/config_nri_keys.ts";
import type { IdleKey } from "../base/config_idle_keys.ts";
import { configTable, defaultConfig, explainedKeys } from "./config_text.ts";
import {
  emptyValue,
  givenTwice,
  unexpectedArgument,
  unknownOption,
  UsageError,
} from "./options.ts";
import { print } from "./output.ts";

export const configFileArg = {
  config: {
    type: "string",
    valueHint: "FILE",
    description: "Configuration file (default /etc/isulad/daemon.json)",
  },
} as const;

/** For the usage text only; parseFlags parses the values and rejects unknown flags. */
export const configArgs: ArgsDef = {
  ...configFileArg,
  ...Object.fromEntries(
    [...Object.values<Key>(daemonKeys), ...Object.values<Key>(nriKeys)].map((key) => [
      key.key,
      { type: key.kind.shape === "switch" ? "boolean" : "string", description: key.about } as const,
    ]),
  ),
};

export type ParsedFlags = {
  file: string | undefined;
  flags: Flags;
  /** Print this and exit. */
  info: "help" | "version" | undefined;
};

/** iSulad's short flags. -s is ambiguous: iSulad's --storage-opt, docker's --storage-driver. */
const shortFlags = new Map<string, readonly (Key | IdleKey)[]>([
  ["-H", [daemonKeys.hosts]],
  ["-G", [daemonKeys.group]],
  ["-g", [daemonKeys.graph]],
  ["-S", [daemonKeys.state]],
  ["-p", [daemonKeys.pidfile]],
  ["-l", [daemonKeys.logLevel]],
  ["-e", [findKey("engine")!]],
  ["-s", [daemonKeys.storageOpts, daemonKeys.storageDriver]],
]);
const infoFlags = new Map<string, ParsedFlags["info"]>([
  ["--help", "help"],
  ["-h", "help"],
  ["--version", "version"],
  ["-V", "version"],
  ["-v", "version"],
]);
const flagNames = ["config", ...allKeys.map(({ key }) => key)];

/**
 * Parses `--key value`, `--key=value`, `-k value` for iSulad's short flags, and `--key` alone for a switch.
 * Lists may be repeated.
 * @throws UsageError for anything else.
 */
export function parseFlags(command: string, argv: readonly string[]): ParsedFlags {
  const see = `See ${command} --help.`;
  const flags = new Map<Key | IdleKey, string>();
  const parsed: ParsedFlags = { file: undefined, flags, info: undefined };
  for (let i = 0; i < argv.length; i++) {
    const arg = argv[i]!;
    if (infoFlags.has(arg)) {
      parsed.info ??= infoFlags.get(arg);
      continue;
    }
    if (!/^-[^-]|^--[^=]/.test(arg)) throw unexpectedArgument(arg, see);
    const [, name = "", inline] = /^([^=]+)(?:=(.*))?$/s.exec(arg)!;
    const key = keyOf(name, see);
    if (key === undefined) throw unknownOption(command, arg, flagNames);
    const isBareSwitch = key !== "config" && key.kind.shape === "switch" && inline === undefined;
    if (isBareSwitch && !/^(true|false|auto)$/.test(argv[i + 1] ?? "")) {
      addFlag(flags, { name, key, value: "true", see });
      continue;
    }
    const value = inline ?? argv[++i];
    if (value === undefined) throw new UsageError(`${name} needs a value. ${see}`);
    if (value === "") throw emptyValue(name, see);
    if (inline === undefined && value.startsWith("-")) {
      throw new UsageError(`${name} needs a value, but is followed by the flag ${value}. ${see}`);
    }
    if (key !== "config") addFlag(flags, { name, key, value, see });
    else if (parsed.file !== undefined) throw givenTwice(name, see);
    else parsed.file = value;
  }
  return parsed;
}

/** name: with its dashes. @throws UsageError for an ambiguous short flag. */
function keyOf(name: string, see: string): Key | IdleKey | "config" | undefined {
  if (name === "--config") return "config";
  if (name.startsWith("--")) return findKey(name.slice(2));
  const [key, ...others] = shortFlags.get(name) ?? [];
  if (key === undefined || others.length === 0) return key;
  const long = [key, ...others].map((other) => `--${other.key}`).join(" or ");
  throw new UsageError(`${name} is ambiguous: use ${long}. ${see}`);
}

function addFlag(
  flags: Map<Key | IdleKey, string>,
  { name, key, value, see }: { name: string; key: Key | IdleKey; value: string; see: string },
): void {
  const earlier = flags.get(key);
  if (earlier !== undefined && key.kind.shape !== "list") throw givenTwice(name, see);
  flags.set(key, earlier === undefined ? value : `${earlier},${value}`);
}

const check = defineCommand({
  meta: { name: "check", description: "Check a configuration file and its drop-ins for errors" },
  args: { file: { type: "positional", valueHint: "FILE", description: "Path of a daemon.json" } },
  run: ({ args }) => {
    const { warnings, files } = loadConfig(args.file);
    for (const warning of warnings) print(`warning: ${warning}`);
    for (const file of files) print(`${file}: ok`);
  },
});

/** This command takes the daemon's flags, so parseFlags parses its arguments. */
export const configShowName = "isulad-ts config show";

const show = defineCommand({
  meta: { name: "show", description: "Show the effective values and their sources" },
  args: configArgs,
  run: ({ rawArgs }) => {
    const { file, flags } = parseFlags(configShowName, rawArgs);
    process.stdout.write(configTable(loadConfig(file, flags)));
  },
});

const defaults = defineCommand({
  meta: {
    name: "default",
    description: "Print a configuration file with every key at its default",
  },
  args: { explain: { type: "boolean", description: "Print what each key means instead" } },
  run: ({ args }) => {
    process.stdout.write(args.explain === true ? explainedKeys() : defaultConfig());
  },
});

export const configCommand = defineCommand({
  meta: {
    name: "config",
    description: "Check, show or convert configuration files",
  },
  subCommands: {
    check,
    show,
    default: defaults,
    migrate: async () => (await import("./config_migrate.ts")).migrateCommand,
  },
});
