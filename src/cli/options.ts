// Checks a command line against the options and operands of its command: citty ignores unknown options, takes
// the last of several values, and accepts empty ones.
import type { ArgDef, ArgsDef } from "citty";
import { quoted } from "../base/text.ts";
import { CriError } from "../base/errors.ts";
import { nearest } from "../base/edit_distance.ts";
import { operandsOf } from "./help.ts";

/** The command line is invalid. */
export class UsageError extends CriError {
  constructor(message: string) {
    super("INVALID_ARGUMENT", message);
  }
}

/** Spread into an option or operand that may be repeated. */
export const repeatable = { repeatable: true } as const;

/**
 * Returns the words with each option under its long name ("-qf x" as "--quiet --filter x"): only words of this
 * form may be searched for an option.
 * @throws UsageError for an unknown or repeated option, a missing or unexpected value, and an empty or
 * surplus operand.
 */
export function checkArguments(name: string, argv: readonly string[], args: ArgsDef): string[] {
  const see = `See ${name} --help.`;
  const seen = new Set<string>();
  const words: string[] = [];
  const operands: string[] = [];
  for (let i = 0; i < argv.length; i++) {
    const arg = argv[i]!;
    if (arg === "--") {
      words.push(...argv.slice(i));
      operands.push(...argv.slice(i + 1));
      break;
    }
    if (!arg.startsWith("-") || arg === "-") {
      words.push(arg);
      operands.push(arg);
      continue;
    }
    const { given, value } = splitOption(arg, args);
    for (const [at, key] of given.entries()) {
      const found = findOption(key, args);
      if (found === undefined) throw unknownOption(name, arg, optionNames(args));
      if (seen.has(found.key) && !isRepeatable(found.def)) throw givenTwice(`--${found.key}`, see);
      if (found.def.type !== "boolean" && at < given.length - 1) throw notLast(arg, key, see);
      seen.add(found.key);
      words.push(key === `no-${found.key}` ? `--${key}` : `--${found.key}`);
    }
    const { def } = findOption(given.at(-1)!, args)!;
    if (def.type === "boolean") {
      if (value !== undefined) throw new UsageError(`${arg} takes no value. ${see}`);
      continue;
    }
    const option = arg.split("=")[0]!;
    const text = value ?? argv[++i];
    checkValue(option, text, value === undefined, args, see);
    checkChoice(option, text!, def);
    words.push(`${words.pop()}=${text}`);
  }
  checkOperands(operands, args, see);
  return words;
}

/** Splits "-abc" into three options unless the command has an option "abc"; value: the part after "=". */
function splitOption(arg: string, args: ArgsDef): { given: string[]; value: string | undefined } {
  const [, dashes = "", key = "", value] = /^(--?)([^=]*)(?:=(.*))?$/s.exec(arg)!;
  const isWhole = dashes === "--" || key === "" || findOption(key, args) !== undefined;
  return { given: isWhole ? [key] : key.split(""), value };
}

function checkValue(
  option: string,
  value: string | undefined,
  isNextArg: boolean,
  args: ArgsDef,
  see: string,
): void {
  if (value === undefined) throw new UsageError(`${option} needs a value. ${see}`);
  if (value === "") throw emptyValue(option, see);
  if (isNextArg && isOption(value, args)) {
    throw new UsageError(`${option} needs a value, but is followed by the option ${value}. ${see}`);
  }
}

function notLast(arg: string, key: string, see: string): UsageError {
  return new UsageError(`In ${arg}, -${key} needs a value: it must be the last letter. ${see}`);
}

function checkChoice(option: string, value: string, def: ArgDef): void {
  if (!("options" in def) || def.options === undefined || def.options.includes(value)) return;
  throw new UsageError(`${option} takes ${def.options.join(", ")}, not ${quoted(value)}`);
}

function checkOperands(operands: readonly string[], args: ArgsDef, see: string): void {
  if (operands.includes("")) throw new UsageError(`An argument is empty. ${see}`);
  const places = Object.values(args).filter(({ type }) => type === "positional");
  const missing = operandsOf(args).filter(({ isRequired }) => isRequired)[operands.length];
  if (missing !== undefined) throw new UsageError(`${missing.name} is missing. ${see}`);
  if (operands.length <= places.length || places.some(isRepeatable)) return;
  throw unexpectedArgument(operands[places.length]!, see);
}

export function unexpectedArgument(arg: string, see: string): UsageError {
  return new UsageError(`Unexpected argument ${quoted(arg)}. ${see}`);
}

/** An empty value usually comes from a script's unset variable. */
export function emptyValue(option: string, see: string): UsageError {
  return new UsageError(`${option} has an empty value: omit it for the default. ${see}`);
}

export function givenTwice(option: string, see: string): UsageError {
  return new UsageError(`${option} is given twice. ${see}`);
}

/** names: known options, the likeliest first. */
export function unknownOption(command: string, arg: string, names: readonly string[]): UsageError {
  const [typed = ""] = arg.split("=");
  const name = typed.replace(/^--?/, "").toLowerCase();
  const whole = names.find((other) => name !== "" && other.startsWith(name));
  // With more than half of its letters different it is no mistyped one; in "-g/a" most letters are a value.
  const differencesMax = typed.startsWith("--") ? name.length / 2 : Infinity;
  const hint = whole ?? (name.length > 2 ? nearest(name, names, differencesMax) : "");
  const advice = hint === "" ? "." : `; did you mean --${hint}?`;
  return new UsageError(`${command} has no option ${typed}${advice} See ${command} --help.`);
}

function optionNames(args: ArgsDef): string[] {
  return Object.keys(args).filter((key) => args[key]?.type !== "positional");
}

function isRepeatable(def: ArgDef): boolean {
  return "repeatable" in def;
}

/** name: without dashes; an option's name or one-letter name. */
export function findOption(name: string, args: ArgsDef): { key: string; def: ArgDef } | undefined {
  for (const [key, def] of Object.entries(args)) {
    if (def.type === "positional") continue;
    const aliases = "alias" in def ? [def.alias ?? []].flat() : [];
    if (key === name || aliases.includes(name)) return { key, def };
    if (def.type === "boolean" && name === `no-${key}`) return { key, def };
  }
  return undefined;
}

function isOption(arg: string, args: ArgsDef): boolean {
  const [, key] = /^--?([^=]+)/.exec(arg) ?? [];
  return key !== undefined && findOption(key, args) !== undefined;
}

/** Returns the option, or the last one of a bundle ("-qf"), whose value is the next word. */
export function valueOption(word: string, args: ArgsDef): ArgDef | undefined {
  if (!word.startsWith("-")) return undefined;
  const { given, value } = splitOption(word, args);
  const def = value === undefined ? findOption(given.at(-1)!, args)?.def : undefined;
  return def?.type === "boolean" ? undefined : def;
}
