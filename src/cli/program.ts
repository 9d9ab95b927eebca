// Runs a command line: finds the command, checks its arguments, prints help and errors. citty parses options.
import { type ArgsDef, type CommandDef, parseArgs } from "citty";
import { messageOf } from "../base/errors.ts";
import { nearest } from "../base/edit_distance.ts";
import { printable } from "../base/text.ts";
import {
  argsOf,
  commandHelp,
  commandOf,
  type CommandGroups,
  described,
  programHelp,
  subCommandsOf,
  ungrouped,
} from "./help.ts";
import { checkArguments, UsageError, valueOption } from "./options.ts";
import { coloured, print, say } from "./output.ts";

export type Program = {
  name: string;
  version: string;
  description: string;
  groups: CommandGroups;
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
    if (argv.length === 1 && /^(--help|-h|help)$/.test(first)) {
      process.stdout.write(await programHelp(program));
      return 0;
    }
    const asked = first === "help" ? [...argv.slice(1), "--help"] : argv;
    return await runLeaf(program, await find(program, asked));
  } catch (error) {
    const message = printable(messageOf(error)); // it may quote a container or a registry
    say(`${coloured(`${program.name}:`, "red", "stderr")} ${message}`);
    const own = error instanceof UsageError ? usageCode : failureCode;
    return program.passthrough[first]?.failureCode ?? own;
  }
}

type Found = { command: CommandDef; name: string; argv: readonly string[] };

async function find(program: Program, argv: readonly string[]): Promise<Found> {
  let commands = ungrouped(program.groups);
  let found: Found = { command: {}, name: program.name, argv };
  for (;;) {
    const [name, ...rest] = found.argv;
    if (name === undefined || name.startsWith("-")) break;
    const next = await commandOf(commands, name);
    if (!next && found.command.run) break; // an operand
    if (!next) throw unknownCommand(found.name, name, Object.keys(commands));
    found = { command: next, name: `${found.name} ${name}`, argv: rest };
    commands = await subCommandsOf(next);
    if (Object.keys(commands).length === 0) break;
  }
  if (found.argv === argv) throw new UsageError(`A command is required. See ${found.name} --help.`);
  return found;
}

function unknownCommand(parent: string, name: string, known: string[]): UsageError {
  const similar = nearest(name, known, name.length / 2);
  const hint = similar === "" ? "." : `; did you mean ${similar}?`;
  const typed = name === "" ? '""' : name;
  return new UsageError(`Unknown command ${typed}${hint} See ${parent} --help.`);
}

async function runLeaf(program: Program, { command, name, argv }: Found): Promise<number> {
  const args = await argsOf(command);
  const rule = program.passthrough[name.split(" ")[1] ?? ""];
  const { own, passed } = split(argv, args, rule?.operands ?? Infinity);
  if (own.some((arg) => arg === "--help" || arg === "-h")) {
    process.stdout.write(await commandHelp(name, command));
    return 0;
  }
  if (!command.run) {
    const names = (await described(await subCommandsOf(command))).map(([sub]) => sub);
    throw new UsageError(`${name} needs one of: ${names.join(", ")}. See ${name} --help.`);
  }
  const parsesItself = program.parseThemselves?.includes(name) === true;
  const words = parsesItself ? [...own] : checkArguments(name, own, args);
  const rawArgs = passed.length > 0 ? [...words, "--", ...passed] : words;
  const result: unknown = await command.run({
    rawArgs,
    args: parse(name, parsesItself ? [] : rawArgs, args),
    cmd: command,
  });
  return typeof result === "number" ? result : 0;
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
      if (valueOption(arg, args) !== undefined) i++;
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

/** Returns all values of a repeated option; citty keeps only the last. rawArgs: as a command gets them. */
export function everyValue(rawArgs: readonly string[], name: string): string[] {
  const end = rawArgs.indexOf("--");
  const options = end < 0 ? rawArgs : rawArgs.slice(0, end);
  const start = `--${name}=`;
  return options.filter((word) => word.startsWith(start)).map((word) => word.slice(start.length));
}
