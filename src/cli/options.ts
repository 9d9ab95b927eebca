// Checks the words of a command line against the options and operands that a command takes: citty ignores
// what it does not know, takes the last of several values, and lets an empty one pass.
import type { ArgDef, ArgsDef } from "citty";
import { quoted } from "../base/text.ts";
import { CriError } from "../base/errors.ts";
import { nearest } from "../base/edit_distance.ts";

/** The command line is wrong. */
export class UsageError extends CriError {
  constructor(message: string) {
    super("INVALID_ARGUMENT", message);
  }
}

/** Spread into an option or operand that may be given several times. */
export const repeatable = { repeatable: true } as const;

/**
 * @throws UsageError for an unknown option, one given twice, one without a value or with one that it does
 * not take, an empty word, and a word too many.
 */
export function checkWords(name: string, words: readonly string[], args: ArgsDef): void {
  const see = `See ${name} --help.`;
  const seen = new Set<string>();
  const operands: string[] = [];
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    if (word === "--") {
      operands.push(...words.slice(i + 1));
      break;
    }
    if (!word.startsWith("-") || word === "-") {
      operands.push(word);
      continue;
    }
    const { given, value } = splitOption(word, args);
    for (const key of given) {
      const found = option(key, args);
      if (found === undefined) throw unknownOption(name, word, optionNames(args));
      if (seen.has(found.key) && !isRepeatable(found.def)) throw givenTwice(`--${found.key}`, see);
      seen.add(found.key);
    }
    const { def } = option(given.at(-1)!, args)!;
    if (def.type === "boolean") {
      if (value !== undefined) throw new UsageError(`${word} takes no value. ${see}`);
      continue;
    }
    checkValue(word.split("=")[0]!, value ?? words[++i], value === undefined, args, see);
  }
  checkOperands(operands, args, see);
}

/** "-abc" as three letters unless the command has an option of that name; value: what follows "=". */
function splitOption(word: string, args: ArgsDef): { given: string[]; value: string | undefined } {
  const [, dashes = "", key = "", value] = /^(--?)([^=]*)(?:=(.*))?$/s.exec(word)!;
  const isWhole = dashes === "--" || option(key, args) !== undefined;
  return { given: isWhole ? [key] : key.split(""), value };
}

function checkValue(
  option: string,
  value: string | undefined,
  isNextWord: boolean,
  args: ArgsDef,
  see: string,
): void {
  if (value === undefined) throw new UsageError(`${option} needs a value. ${see}`);
  if (value === "") throw emptyValue(option, see);
  if (isNextWord && isOption(value, args)) {
    throw new UsageError(`${option} needs a value, not the option ${value}. ${see}`);
  }
}

function checkOperands(operands: readonly string[], args: ArgsDef, see: string): void {
  if (operands.includes("")) throw new UsageError(`An empty word names nothing. ${see}`);
  const places = Object.values(args).filter(({ type }) => type === "positional");
  if (operands.length <= places.length || places.some(isRepeatable)) return;
  throw unexpectedWord(operands[places.length]!, see);
}

export function unexpectedWord(word: string, see: string): UsageError {
  return new UsageError(`Unexpected word ${quoted(word)}. ${see}`);
}

/** An unset variable of a script, as a rule. */
export function emptyValue(option: string, see: string): UsageError {
  return new UsageError(`${option} has an empty value: leave it out for the default. ${see}`);
}

export function givenTwice(option: string, see: string): UsageError {
  return new UsageError(`${option} is given twice. ${see}`);
}

/** names: the options that there are, the likeliest first. */
export function unknownOption(command: string, word: string, names: readonly string[]): UsageError {
  const [typed = ""] = word.split("=");
  const name = typed.replace(/^--?/, "");
  const sameLetter = names.find((other) => name !== "" && other.startsWith(name.toLowerCase()));
  const hint = name.length > 2 ? nearest(name, names) : sameLetter;
  const advice = hint === undefined ? "." : `; is it --${hint}?`;
  return new UsageError(`${command} has no option ${typed}${advice} See ${command} --help.`);
}

function optionNames(args: ArgsDef): string[] {
  return Object.keys(args).filter((key) => args[key]?.type !== "positional");
}

function isRepeatable(def: ArgDef): boolean {
  return "repeatable" in def;
}

function option(name: string, args: ArgsDef): { key: string; def: ArgDef } | undefined {
  for (const [key, def] of Object.entries(args)) {
    if (def.type === "positional") continue;
    const aliases = "alias" in def ? [def.alias ?? []].flat() : [];
    if (key === name || aliases.includes(name)) return { key, def };
    if (def.type === "boolean" && name === `no-${key}`) return { key, def };
  }
  return undefined;
}

function isOption(word: string, args: ArgsDef): boolean {
  const [, key] = /^--?([^=]+)/.exec(word) ?? [];
  return key !== undefined && option(key, args) !== undefined;
}

export function takesValue(word: string, args: ArgsDef): boolean {
  const found = option(word.replace(/^--?/, ""), args);
  return found !== undefined && found.def.type !== "boolean";
}
