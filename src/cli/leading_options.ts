// Moves options that stand before a command behind it: `isulad-ts -H unix:///run/x.sock ps`, as docker and crictl
// take them. Without a command they are flags of the daemon, which has some of the same names.
import type { CommandDef } from "citty";
import { argsOf, type CommandGroups, commandOf, subCommandsOf, ungrouped } from "./help.ts";
import { checkArguments, UsageError } from "./options.ts";

/**
 * Returns the command line with the command first, if only options of that command precede it. Otherwise returns as
 * `command` the first word that names a command, if there is one, for an error.
 */
export async function commandFirst(
  groups: CommandGroups,
  argv: readonly string[],
): Promise<{ argv?: string[]; command?: string }> {
  const commands = ungrouped(groups);
  let seen: string | undefined;
  for (const [at, word] of argv.entries()) {
    let command = await commandOf(commands, word);
    if (command === undefined) continue;
    seen ??= word;
    const path = [word];
    for (const next of argv.slice(at + 1)) {
      const subCommand = await commandOf(await subCommandsOf(command), next);
      if (subCommand === undefined) break;
      path.push(next);
      command = subCommand;
    }
    const leading = argv.slice(0, at);
    if (!(await areOptions(leading, command))) continue;
    return { argv: [...path, ...leading, ...argv.slice(at + path.length)] };
  }
  return seen === undefined ? {} : { command: seen };
}

async function areOptions(argv: readonly string[], command: CommandDef): Promise<boolean> {
  const args = Object.entries(await argsOf(command)).filter(
    ([, { type }]) => type !== "positional",
  );
  const own = argv.filter((arg) => !/^(-h|--help)$/.test(arg));
  try {
    checkArguments("", own, Object.fromEntries(args));
    return true;
  } catch (error) {
    if (error instanceof UsageError) return false;
    throw error;
  }
}
