// Implements isulad-ts completion, which prints a shell's script, and isulad-ts complete, which that script
// calls: it lists what may stand at the end of a command line.
import { type ArgDef, type ArgsDef, type CommandDef, defineCommand } from "citty";
import type { Client } from "./client.ts";
import { hostArg, withClient } from "./daemon_command.ts";
import {
  argsOf,
  type CommandGroups,
  commandOf,
  described,
  optionsOf,
  subCommandsOf,
  ungrouped,
} from "./help.ts";
import { containersOf, podCandidate } from "./lookup.ts";
import { valueOption } from "./options.ts";
import { bashScript, fishScript, zshScript } from "./completion_scripts.ts";
import { print } from "./output.ts";

/** A word, and what it means ("" if nothing is known). */
type Suggestion = [word: string, about: string];
/** Kinds of live names. */
type Kind = "container" | "pod" | "image";
export type LiveNames = (kind: Kind) => Promise<Suggestion[]>;

// A daemon that does not answer must not hold up the user's typing.
const listTimeoutMs = 2_000;
const isId = /^[0-9a-f]{64}$/;

export const completion = defineCommand({
  meta: { description: "Print a script that completes commands in bash, zsh or fish" },
  subCommands: {
    bash: script("bash", "source <(isulad-ts completion bash)", () => bashScript),
    zsh: script("zsh", "source <(isulad-ts completion zsh)", () => zshScript),
    fish: script("fish", "isulad-ts completion fish | source", () => fishScript),
  },
});

function script(shell: string, use: string, text: () => string): CommandDef {
  const description = `Print the script for ${shell}: ${use}`;
  return { meta: { description }, run: () => print(text()) };
}

/** groups: the whole command tree. */
export function completeCommand(groups: () => CommandGroups) {
  return defineCommand({
    meta: { description: "List completions of a command line", hidden: true },
    args: { word: { type: "positional", required: false, description: "Words so far" } },
    run: async ({ args }) => {
      const host = socketIn(args._);
      const live: LiveNames = (kind) => withClient({ host }, (client) => liveNames(client, kind));
      for (const [word, about] of await suggestions(groups(), args._, live)) {
        print(about === "" ? word : `${word}\t${about}`);
      }
    },
  });
}

function socketIn(words: readonly string[]): string | undefined {
  for (const [at, word] of words.entries()) {
    if (word === "--") break;
    if (valueOption(word, hostArg) !== undefined) return words[at + 1];
    const [, inline] = /^(?:-[a-z]*H|--host)=(.*)$/is.exec(word) ?? [];
    if (inline !== undefined) return inline;
  }
  return undefined;
}

/** words: those behind the program's name; the last is incomplete, perhaps empty. Never throws. */
export async function suggestions(
  groups: CommandGroups,
  words: readonly string[],
  live: LiveNames,
): Promise<Suggestion[]> {
  let commands = ungrouped(groups);
  let command: CommandDef | undefined;
  let at = 0;
  // The socket may stand before the command (leading_options.ts).
  while (words.length > at + 1 && valueOption(words[at]!, hostArg) !== undefined) at += 2;
  if (at > words.length - 1) return [];
  for (; at < words.length - 1; at++) {
    const next = await commandOf(commands, words[at]!);
    if (next === undefined) break;
    command = next;
    commands = await subCommandsOf(command);
  }
  const last = words.at(-1) ?? "";
  const earlier = words.slice(at, -1);
  const args = command === undefined ? {} : await argsOf(command);
  const found: Suggestion[] = [];
  if (earlier.length === 0 && !last.startsWith("-")) found.push(...(await described(commands)));
  if (command !== undefined) found.push(...(await ofCommand(args, earlier, last, live)));
  // Ids are suggested only once the user has typed a part: names say more.
  return found.filter(([word]) => word.startsWith(last) && (last !== "" || !isId.test(word)));
}

async function ofCommand(
  args: ArgsDef,
  earlier: readonly string[],
  last: string,
  live: LiveNames,
): Promise<Suggestion[]> {
  let operands = 0;
  let awaited: ArgDef | undefined;
  for (const word of earlier) {
    if (awaited !== undefined) awaited = undefined;
    else if (word.startsWith("-") && word !== "-") awaited = valueOption(word, args);
    else operands++;
  }
  if (awaited !== undefined) return await valuesOf(awaited, live);
  if (last.startsWith("-")) return optionsOf(args).map(([name, about]) => [longName(name), about]);
  const places = Object.values(args).filter(({ type }) => type === "positional");
  const place = places[operands] ?? places.findLast((def) => "repeatable" in def);
  return place === undefined ? [] : await valuesOf(place, live);
}

/** "-p, --pod=POD" → "--pod" */
function longName(row: string): string {
  return /--[^=]+/.exec(row)![0];
}

async function valuesOf(def: ArgDef, live: LiveNames): Promise<Suggestion[]> {
  if ("options" in def && def.options) return def.options.map((option) => [option, ""]);
  if (!("completes" in def)) return [];
  return await live(def.completes as Kind).catch(() => []); // no daemon: nothing to suggest
}

async function liveNames(client: Client, kind: Kind): Promise<Suggestion[]> {
  const limit = { timeoutMs: listTimeoutMs };
  if (kind === "image") {
    const { images } = await client.ListImages({}, limit);
    const names = images.flatMap(({ repo_tags }) => repo_tags ?? []).flatMap(namesOf);
    return names.map((name): Suggestion => [name, ""]);
  }
  const pods = client.ListPodSandbox({}, limit).then(({ items }) => items);
  const found = kind === "pod" ? (await pods).map(podCandidate) : await containersOf(client, pods);
  return found.flatMap(({ id, path, state }): Suggestion[] => [
    [path, state],
    [path.slice(path.lastIndexOf("/") + 1), path],
    [id, path],
  ]);
}

/** Returns a name as it is listed, and as people type it. */
export function namesOf(tag: string): string[] {
  const short = tag.replace(/^docker\.io\/(library\/)?/, "");
  return short === tag ? [tag] : [tag, short];
}
