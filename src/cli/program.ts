// Runs a command line: finds the command, checks its arguments, prints help and errors. citty parses options.
import { stripVTControlCharacters } from "node:util";
import { type ArgsDef, type CommandDef, parseArgs, renderUsage, type SubCommandsDef } from "citty";
import { messageOf } from "../base/errors.ts";
import { nearest } from "../base/edit_distance.ts";
import { checkArguments, takesValue, UsageError } from "./options.ts";
import { print, say } from "./output.ts";

export type Program = {
  name: string;
  version: string;
  commands: SubCommandsDef;
  /** Runs if the command line names no command. */
  main: CommandDef;
  /** Commands that pass all arguments after their first operands to a command in a container. */
  passthrough: Record<string, PassThrough>;
  /** Full names of commands that parse and check their arguments themselves. */
  parseThemselves?: readonly string[];
};
/** operands: how many are the command's own; failureCode: exit code of failures outside the container. */
export type PassThrough = { operands: number; failureCode: number };

export const failureCode = 1;
const usageCode = 2;

/** Runs the command line and returns the exit code. Never throws. */
export async function runProgram(program: Program, argv: readonly string[]): Promise<number> {
  const first = argv[0] ?? "";
  try {
    if (argv.length === 1 && /^(--version|-v|-V)$/.test(first)) {
      print(program.version);
      return 0;
    }
    const isCommand = argv.length > 0 && !first.startsWith("-");
    if (!isCommand) return await runLeaf(program, program.main, { name: program.name, argv });
    const found = await find(program, argv);
    return await runLeaf(program, found.command, found);
  } catch (error) {
    say(`${program.name}: ${messageOf(error)}`);
    const own = error instanceof UsageError ? usageCode : failureCode;
    return program.passthrough[first]?.failureCode ?? own;
  }
}

type Found = { command: CommandDef; name: string; argv: readonly string[] };

async function find(program: Program, argv: readonly string[]): Promise<Found> {
  let commands: SubCommandsDef | undefined = program.commands;
  let found: Found = { command: program.main, name: program.name, argv };
  while (commands) {
    const [name, ...rest] = found.argv;
    if (name === undefined || name.startsWith("-")) break;
    const next: unknown = await resolve(commands[name]);
    if (!next && found.command.run && found.command !== program.main) break; // an operand
    if (!next) throw unknownCommand(found.name, name, Object.keys(commands));
    found = { command: next, name: `${found.name} ${name}`, argv: rest };
    commands = (await resolve(found.command.subCommands)) as SubCommandsDef | undefined;
  }
  return found;
}

async function resolve(value: unknown): Promise<unknown> {
  return typeof value === "function" ? (value as () => unknown)() : value;
}

function unknownCommand(parent: string, name: string, known: string[]): UsageError {
  const hint = name.length > 2 ? `; did you mean ${nearest(name, known)}?` : ".";
  const typed = name === "" ? '""' : name;
  return new UsageError(`Unknown command ${typed}${hint} See ${parent} --help.`);
}

async function runLeaf(program: Program, command: CommandDef, found: Omit<Found, "command">) {
  const args = ((await resolve(command.args)) ?? {}) as ArgsDef;
  const rule = program.passthrough[found.name.split(" ")[1] ?? ""];
  const { own, passed } = split(found.argv, args, rule?.operands ?? Infinity);
  if (own.some((arg) => arg === "--help" || arg === "-h")) {
    const isMain = command === program.main;
    const shown = isMain ? { ...command, subCommands: program.commands } : command;
    const meta = { ...(await metaOf(command)), name: found.name };
    const usage = (await renderUsage({ ...shown, meta })).replaceAll(/ +$/gm, "");
    print(process.stdout.isTTY ? usage : stripVTControlCharacters(usage)); // citty always adds colours
    return 0;
  }
  const subCommands = (await resolve(command.subCommands)) as SubCommandsDef | undefined;
  if (!command.run) {
    throw new UsageError(
      `${found.name} needs one of: ${Object.keys(subCommands ?? {}).join(", ")}. See ${found.name} --help.`,
    );
  }
  const parsesItself = program.parseThemselves?.includes(found.name) === true;
  if (!parsesItself) checkArguments(found.name, own, args);
  const rawArgs = passed.length > 0 ? [...own, "--", ...passed] : [...own];
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

/** Splits the arguments behind the command's last own operand; the rest is passed to the container. */
function split(argv: readonly string[], args: ArgsDef, operands: number) {
  if (operands === Infinity) return { own: argv, passed: [] };
  let seen = 0;
  for (let i = 0; i < argv.length; i++) {
    const arg = argv[i]!;
    if (arg === "--") return { own: argv.slice(0, i), passed: argv.slice(i + 1) };
    if (arg.startsWith("-") && arg !== "-") {
      if (!arg.includes("=") && takesValue(arg, args)) i++;
      continue;
    }
    seen++;
    if (seen === operands) {
      const passed = argv.slice(i + 1);
      return { own: argv.slice(0, i + 1), passed: passed[0] === "--" ? passed.slice(1) : passed };
    }
  }
  return { own: argv, passed: [] };
}

/** Returns all values of a repeated option; citty keeps only the last. */
export function everyValue(rawArgs: readonly string[], names: readonly string[]): string[] {
  const values: string[] = [];
  for (let i = 0; i < rawArgs.length && rawArgs[i] !== "--"; i++) {
    const [name = "", ...value] = rawArgs[i]!.split("=");
    if (!names.includes(name)) continue;
    values.push(value.length > 0 ? value.join("=") : (rawArgs[++i] ?? ""));
  }
  return values;
}
