// Formats help texts of the command tree for 80 columns. Pure, apart from resolving lazily loaded commands.
import type { ArgDef, ArgsDef, CommandDef, SubCommandsDef } from "citty";
import { beginning, cellsOf } from "./cells.ts";

/** Headings of the help and the commands below them, in the order of the help. */
export type CommandGroups = Record<string, SubCommandsDef>;

const columns = 80;
/** Longer names have their description on the next line. */
const nameColumnsMax = 24;
const indent = "  ";

/** The commands of all groups by name. */
export function ungrouped(groups: CommandGroups): SubCommandsDef {
  return Object.assign({}, ...Object.values(groups)) as SubCommandsDef;
}

/** citty allows a value, a promise, or a function that returns either. */
export async function resolve(value: unknown): Promise<unknown> {
  return typeof value === "function" ? (value as () => unknown)() : value;
}

export async function metaOf(command: CommandDef) {
  return ((await resolve(command.meta)) ?? {}) as { description?: string; hidden?: boolean };
}

export async function argsOf(command: CommandDef): Promise<ArgsDef> {
  return ((await resolve(command.args)) ?? {}) as ArgsDef;
}

export async function subCommandsOf(command: CommandDef): Promise<SubCommandsDef> {
  return ((await resolve(command.subCommands)) ?? {}) as SubCommandsDef;
}

/** Returns the command of a name that the user has typed. */
export async function commandOf(
  commands: SubCommandsDef,
  name: string,
): Promise<CommandDef | undefined> {
  // Every object has "constructor".
  const lazy = Object.hasOwn(commands, name) ? commands[name] : undefined;
  return (await resolve(lazy)) as CommandDef | undefined;
}

/** Returns names and descriptions, without hidden commands. */
export async function described(commands: SubCommandsDef): Promise<[string, string][]> {
  const rows: [string, string][] = [];
  for (const [name, lazy] of Object.entries(commands)) {
    const { description = "", hidden } = await metaOf((await resolve(lazy)) as CommandDef);
    if (hidden !== true) rows.push([name, description]);
  }
  return rows;
}

export async function programHelp(program: {
  name: string;
  description: string;
  groups: CommandGroups;
}): Promise<string> {
  const { name, description, groups } = program;
  const parts = [
    `${description}\n`,
    `Usage: ${name} COMMAND [OPTION…]\n       ${name} [daemon] [--config FILE] [FLAG…]\n`,
  ];
  for (const [heading, commands] of Object.entries(groups)) {
    parts.push(section(heading, await described(commands)));
  }
  parts.push(
    `${name} COMMAND --help describes a command, ${name} daemon --help the\nflags of the daemon. ${name} --version prints version and commit.\n`,
  );
  return parts.join("\n");
}

export async function commandHelp(name: string, command: CommandDef): Promise<string> {
  const { description = "" } = await metaOf(command);
  const args = await argsOf(command);
  const commands = await described(await subCommandsOf(command));
  const operands = operandsOf(args);
  const options = optionsOf(args);
  const usage = [name, ...(options.length > 0 ? ["[OPTION…]"] : [])];
  usage.push(...operands.map(({ usage: form }) => form));
  const lines = command.run || commands.length === 0 ? [usage.join(" ")] : [];
  if (commands.length > 0) lines.push(`${name} COMMAND`);
  const parts = [
    `${wrapped(description, columns).join("\n")}\n`,
    `Usage: ${lines.join("\n       ")}\n`,
  ];
  const rows = operands.map(({ name: operand, about }): [string, string] => [operand, about]);
  if (commands.length > 0) parts.push(section("Commands", commands));
  if (operands.length > 0) parts.push(section("Arguments", rows));
  if (options.length > 0) parts.push(section("Options", options));
  return parts.join("\n");
}

/** name: in capitals; usage: with brackets and dots. */
type Operand = { name: string; usage: string; about: string; isRequired: boolean };

export function operandsOf(args: ArgsDef): Operand[] {
  return Object.entries(args).flatMap(([key, def]) => {
    if (def.type !== "positional") return [];
    const name = (def.valueHint ?? key).toUpperCase();
    const dots = "repeatable" in def && !name.includes("…") ? "…" : "";
    const isRequired = def.required !== false;
    const usage = isRequired ? `${name}${dots}` : `[${name}${dots}]`;
    return [{ name, usage, about: def.description ?? "", isRequired }];
  });
}

/** Returns rows such as ["-p, --pod=POD", "Only containers of this pod"]. */
export function optionsOf(args: ArgsDef): [string, string][] {
  return Object.entries(args).flatMap(([key, def]) => {
    if (def.type === "positional") return [];
    const about = def.description ?? "";
    if (def.type === "boolean" && def.default === true) {
      return [[`    --no-${key}`, def.negativeDescription ?? about] as [string, string]];
    }
    const short = shortNameOf(def);
    const value = def.type === "boolean" || def.type === undefined ? "" : `=${valueOf(def)}`;
    const start = short === undefined ? "    " : `-${short}, `;
    return [[`${start}--${key}${value}`, about + noteOf(def)] as [string, string]];
  });
}

function shortNameOf(def: ArgDef): string | undefined {
  const aliases = "alias" in def ? [def.alias ?? []].flat() : [];
  return aliases.find((alias) => alias.length === 1);
}

function valueOf(def: ArgDef): string {
  if ("options" in def && def.options !== undefined) return def.options.join("|");
  return def.valueHint ?? "VALUE";
}

function noteOf(def: ArgDef): string {
  const notes = "repeatable" in def ? ["repeatable"] : [];
  if (typeof def.default === "string" && def.default !== "") notes.push(`default ${def.default}`);
  return notes.length > 0 ? ` (${notes.join("; ")})` : "";
}

function section(heading: string, rows: readonly [string, string][]): string {
  const width = Math.min(nameColumnsMax, Math.max(...rows.map(([name]) => name.length)));
  const start = indent.length + width + 2;
  const lines = rows.flatMap(([name, about]) => {
    const [first = "", ...rest] = wrapped(about, columns - start);
    const inset = rest.map((line) => " ".repeat(start) + line);
    if (name.length <= width) return [`${indent}${name.padEnd(width)}  ${first}`, ...inset];
    return [`${indent}${name}`, " ".repeat(start) + first, ...inset];
  });
  return `${heading}:\n${lines.map((line) => `${line.trimEnd()}\n`).join("")}`;
}

/** Breaks a text at its spaces; a longer word has a line of its own. */
export function wrapped(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && cellsOf(line) + 1 + cellsOf(word) > width) {
      lines.push(line);
      line = word;
    } else line = line === "" ? word : `${line} ${word}`;
  }
  return [...lines, line];
}

const foldedColumnsMin = 20;

/** Breaks a text at its spaces, and also longer words: no line is longer than `width`, if that has room for words. */
export function folded(text: string, width: number): string[] {
  const columns = Math.max(width, foldedColumnsMin);
  return wrapped(
    text
      .split(" ")
      .map((word) => broken(word, columns))
      .join(" "),
    columns,
  );
}

/** Puts a space behind each part of a word that is a line long. */
function broken(word: string, columns: number): string {
  const parts: string[] = [];
  let rest = word;
  while (cellsOf(rest) > columns) {
    parts.push(beginning(rest, columns));
    rest = rest.slice(parts.at(-1)!.length);
  }
  return [...parts, rest].join(" ");
}
