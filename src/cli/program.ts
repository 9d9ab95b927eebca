// Runs the command that a command line names: finds it, has its words checked, prints help and errors,
// and returns the exit code. citty parses the options themselves.
import { stripVTControlCharacters } from "node:util";
import { type ArgsDef, type CommandDef, parseArgs, renderUsage, type SubCommandsDef } from "citty";
import { messageOf } from "../base/errors.ts";
import { nearest } from "../base/edit_distance.ts";
import { checkWords, takesValue, UsageError } from "./options.ts";
import { print, say } from "./output.ts";

export type Program = {
  name: string;
  version: string;
  commands: SubCommandsDef;
  /** What the program does without a command's name. */
  main: CommandDef;
  /** Commands after whose first operands everything belongs to the command in the container. */
  passthrough: Record<string, PassThrough>;
  /** Full names of commands that parse and check all their words. */
  parseThemselves?: readonly string[];
};
/** operands: how many words are ours; failureCode: the exit code that tells us from the container. */
export type PassThrough = { operands: number; failureCode: number };

export const failureCode = 1;
export const usageCode = 2;

/** Runs what the words ask for and returns the exit code. Never throws. */
export async function runProgram(program: Program, words: readonly string[]): Promise<number> {
  const first = words[0] ?? "";
  try {
    if (words.length === 1 && /^(--version|-v|-V)$/.test(first)) {
      print(program.version);
      return 0;
    }
    const isCommand = words.length > 0 && !first.startsWith("-");
    if (!isCommand) return await runLeaf(program, program.main, { name: program.name, words });
    const found = await find(program, words);
    return await runLeaf(program, found.command, found);
  } catch (error) {
    say(`${program.name}: ${messageOf(error)}`);
    const own = error instanceof UsageError ? usageCode : failureCode;
    return program.passthrough[first]?.failureCode ?? own;
  }
}

type Found = { command: CommandDef; name: string; words: readonly string[] };

async function find(program: Program, words: readonly string[]): Promise<Found> {
  let commands: SubCommandsDef | undefined = program.commands;
  let found: Found = { command: program.main, name: program.name, words };
  while (commands) {
    const [name, ...rest] = found.words;
    if (name === undefined || name.startsWith("-")) break;
    const next: unknown = await resolve(commands[name]);
    if (!next && found.command.run && found.command !== program.main) break; // an operand
    if (!next) throw unknownCommand(found.name, name, Object.keys(commands));
    found = { command: next, name: `${found.name} ${name}`, words: rest };
    commands = (await resolve(found.command.subCommands)) as SubCommandsDef | undefined;
  }
  return found;
}

async function resolve(value: unknown): Promise<unknown> {
  return typeof value === "function" ? (value as () => unknown)() : value;
}

function unknownCommand(parent: string, name: string, known: string[]): UsageError {
  const hint = name.length > 2 ? `; is it ${nearest(name, known)}?` : ".";
  const typed = name === "" ? '""' : name;
  return new UsageError(`Unknown command ${typed}${hint} See ${parent} --help.`);
}

async function runLeaf(program: Program, command: CommandDef, found: Omit<Found, "command">) {
  const args = ((await resolve(command.args)) ?? {}) as ArgsDef;
  const rule = program.passthrough[found.name.split(" ")[1] ?? ""];
  const { ours, theirs } = split(found.words, args, rule?.operands ?? Infinity);
  if (ours.some((word) => word === "--help" || word === "-h")) {
    const isMain = command === program.main;
    const shown = isMain ? { ...command, subCommands: program.commands } : command;
    const meta = { ...(await metaOf(command)), name: found.name };
    const usage = (await renderUsage({ ...shown, meta })).replaceAll(/ +$/gm, "");
    print(process.stdout.isTTY ? usage : stripVTControlCharacters(usage)); // citty always colours.
    return 0;
  }
  const subCommands = (await resolve(command.subCommands)) as SubCommandsDef | undefined;
  if (!command.run) {
    throw new UsageError(
      `${found.name} needs one of: ${Object.keys(subCommands ?? {}).join(", ")}. See ${found.name} --help.`,
    );
  }
  const parsesItself = program.parseThemselves?.includes(found.name) === true;
  if (!parsesItself) checkWords(found.name, ours, args);
  const rawArgs = theirs.length > 0 ? [...ours, "--", ...theirs] : [...ours];
  const result: unknown = await command.run({
    rawArgs,
    args: parse(found.name, parsesItself ? [] : rawArgs, args),
    cmd: command,
  });
  return typeof result === "number" ? result : 0;
}

async function metaOf(command: CommandDef): Promise<{ description?: string }> {
  return (await resolve(command.meta)) ?? {};
}

function parse(name: string, rawArgs: string[], args: ArgsDef) {
  try {
    return parseArgs(rawArgs, args);
  } catch (error) {
    throw new UsageError(`${messageOf(error).replace(/\.$/, "")}. See ${name} --help.`);
  }
}

/** The words up to and with the last operand that is ours, and the container's. */
function split(words: readonly string[], args: ArgsDef, operands: number) {
  if (operands === Infinity) return { ours: words, theirs: [] };
  let seen = 0;
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    if (word === "--") return { ours: words.slice(0, i), theirs: words.slice(i + 1) };
    if (word.startsWith("-") && word !== "-") {
      if (!word.includes("=") && takesValue(word, args)) i++;
      continue;
    }
    seen++;
    if (seen === operands) {
      const theirs = words.slice(i + 1);
      return { ours: words.slice(0, i + 1), theirs: theirs[0] === "--" ? theirs.slice(1) : theirs };
    }
  }
  return { ours: words, theirs: [] };
}

/** The values of an option given several times; citty keeps only the last. */
export function everyValue(rawArgs: readonly string[], names: readonly string[]): string[] {
  const values: string[] = [];
  for (let i = 0; i < rawArgs.length && rawArgs[i] !== "--"; i++) {
    const [name = "", ...value] = rawArgs[i]!.split("=");
    if (!names.includes(name)) continue;
    values.push(value.length > 0 ? value.join("=") : (rawArgs[++i] ?? ""));
  }
  return values;
}
