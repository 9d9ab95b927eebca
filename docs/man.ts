// Writes manual pages of the commands and of daemon.json: `bun docs/man.ts [FOLDER]`, by default into dist/man.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import type { CommandDef, SubCommandsDef } from "citty";
import type { Key } from "../src/base/config_key.ts";
import { allKeys } from "../src/base/config_keys.ts";
import { allowed, names, shownDefault } from "./generate.ts";
import { description, groups } from "../src/cli/commands.ts";
import {
  argsOf,
  metaOf,
  operandsOf,
  optionsOf,
  resolve,
  subCommandsOf,
  ungrouped,
} from "../src/cli/help.ts";

const name = "isulad-ts";
const configName = `${name}-daemon.json`;
type Command = { path: string; about: string; command: CommandDef };

/** Returns each page's text by its file name, which ends with the number of its section. */
export async function manPages(): Promise<Map<string, string>> {
  const all = await commandsOf(name, ungrouped(groups));
  const pages = new Map([[`${name}.1`, mainPage(all)]]);
  for (const one of all) pages.set(`${dashed(one.path)}.1`, await commandPage(one));
  return pages.set(`${configName}.5`, configPage());
}

function configPage(): string {
  const keys = allKeys.filter((key): key is Key => !("why" in key));
  const plain = (markdown: string) => markdown.replaceAll("`", "");
  const about = (key: Key) => {
    const usual = plain(shownDefault(key));
    const values = `Values: ${plain(allowed(key))}.`;
    return `${key.about}. ${values}${usual === "" ? "" : ` Default: ${usual}.`}`;
  };
  const intro = `${name} reads /etc/isulad/daemon.json, or the file of its flag --config: a JSON object of these keys. Each key is also a flag of ${name} daemon. ${name} config check FILE finds mistakes, ${name} config show the values in force.`;
  return [
    head(configName, "Configuration of isulad-ts", 5),
    section("DESCRIPTION", text(intro)),
    section("KEYS", keys.map((key) => item(plain(names(key)), about(key))).join("\n")),
    section("SEE ALSO", `.BR ${name}\\-daemon (1),\n.BR ${name}\\-config (1)`),
  ].join("\n");
}

/** The commands and their subcommands; hidden ones have no page. */
async function commandsOf(parent: string, commands: SubCommandsDef): Promise<Command[]> {
  const found: Command[] = [];
  for (const [key, lazy] of Object.entries(commands)) {
    const command = (await resolve(lazy)) as CommandDef;
    const { description: about = "", hidden } = await metaOf(command);
    if (hidden === true) continue;
    const path = `${parent} ${key}`;
    found.push({ path, about, command }, ...(await commandsOf(path, await subCommandsOf(command))));
  }
  return found;
}

function mainPage(all: readonly Command[]): string {
  return [
    head(name, description),
    section("SYNOPSIS", `.B ${name}\nCOMMAND [OPTION...]\n.br\n.B ${name}\n[daemon] [FLAG...]`),
    section(
      "DESCRIPTION",
      text("Each command has a page of its own; without one, the daemon runs."),
    ),
    section("COMMANDS", all.map(({ path, about }) => item(`${dashed(path)}(1)`, about)).join("\n")),
  ].join("\n");
}

async function commandPage({ path, about, command }: Command): Promise<string> {
  const args = await argsOf(command);
  const operands = operandsOf(args);
  const options = optionsOf(args);
  const subCommands = await commandsOf(path, await subCommandsOf(command));
  const usage = [...(options.length > 0 ? ["[OPTION…]"] : []), ...operands.map((one) => one.usage)];
  const parts = [
    head(path, about),
    section("SYNOPSIS", `.B ${text(path)}\n${text(usage.join(" "))}`),
  ];
  const add = (heading: string, rows: readonly [string, string][]) => {
    if (rows.length === 0) return;
    parts.push(section(heading, rows.map(([key, what]) => item(key.trim(), what)).join("\n")));
  };
  add(
    "COMMANDS",
    subCommands.map((one) => [`${dashed(one.path)}(1)`, one.about]),
  );
  add(
    "ARGUMENTS",
    operands.map((one) => [one.name, one.about]),
  );
  add("OPTIONS", options);
  const others = path === `${name} daemon` ? `,\n.BR ${configName} (5)` : "";
  parts.push(section("SEE ALSO", `.BR ${name} (1)${others}`));
  return parts.join("\n");
}

function dashed(path: string): string {
  return path.replaceAll(" ", "-");
}

function head(path: string, about: string, manual = 1): string {
  const title = dashed(path);
  return `.TH ${title.toUpperCase()} ${manual} "" ${name}\n${section("NAME", `${text(title)} \\- ${text(about)}`)}`;
}

function section(heading: string, body: string): string {
  return `.SH ${heading}\n${body}`;
}

function item(key: string, about: string): string {
  return `.TP\n.B ${text(key)}\n${text(about)}`;
}

/** Escapes what roff would take for a request, an escape or a hyphen that may be broken. */
function text(plain: string): string {
  const escaped = plain.replaceAll("\\", "\\e").replaceAll("-", "\\-").replaceAll("…", "...");
  return /^[.']/.test(escaped) ? `\\&${escaped}` : escaped;
}

if (import.meta.main) {
  const folder = process.argv[2] ?? join(import.meta.dirname, "../dist/man");
  const pages = await manPages();
  for (const [file, page] of pages) {
    const place = join(folder, `man${file.at(-1)}`);
    mkdirSync(place, { recursive: true });
    writeFileSync(join(place, file), `${page}\n`);
  }
  process.stdout.write(`wrote ${pages.size} pages to ${folder}\n`);
}
