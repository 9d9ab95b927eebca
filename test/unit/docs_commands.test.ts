// Tests that the command lines of README.md and docs/ name commands, options and flags that exist.
import { expect, spyOn, test } from "bun:test";
import type { CommandDef, SubCommandsDef } from "citty";
import { messageOf } from "../../src/base/errors.ts";
import { groups, passthrough } from "../../src/cli/commands.ts";
import { configShowName, parseFlags } from "../../src/cli/config.ts";
import { resolve, ungrouped } from "../../src/cli/help.ts";
import { commandFirst } from "../../src/cli/leading_options.ts";
import { runProgram } from "../../src/cli/program.ts";
import { commandLines, shownCommands } from "../shown_commands.ts";

const name = "isulad-ts";
const shown = shownCommands();

test("every command line of the documentation is accepted", async () => {
  const problems: string[] = [];
  for (const { page, words } of shown) {
    const problem = await problemOf(words);
    if (problem !== "") problems.push(`${page}: ${words.join(" ")}: ${problem}`);
  }
  expect(problems).toEqual([]);
  expect(shown.length).toBeGreaterThan(25);
});

test.each([
  [["pss"], "Unknown command pss; did you mean ps?"],
  [["ps", "--al"], "has no option --al; did you mean --all?"],
  [["config", "chek", "FILE"], "Unknown command chek"],
  [["--grap", "/g"], "has no option --grap; did you mean --graph?"],
])("isulad-ts %p would be reported", async (words, problem) => {
  expect(await problemOf(words)).toContain(problem);
});

test("command lines are found behind prompts, variables, sudo and pipes, and without comments", () => {
  const text = [
    "Use `isulad-ts images verify [IMAGE]`, not `systemctl reload isulad-ts`.",
    "```sh",
    "$ sudo isulad-ts ps -a    # isulad-ts nothing",
    "ISULAD_HOST=unix:///i.sock isulad-ts inspect ID -o json 2>/dev/null | jq '.a | .b' && isulad-ts version",
    "isulad-ts rm … $(isulad-ts ps -aq) \\",
    '  "one # word"',
    "```",
    "```",
    "isulad-ts: an error message",
    "```",
    "1. A list:",
    "   ```sh",
    "   isulad-ts pods",
    "   ```",
    "   ```",
    "   isulad-ts: another one; `isulad-ts nothing`",
    "   ```",
  ].join("\n");
  expect(commandLines(text)).toEqual([
    ["ps", "-a"],
    ["inspect", "ID", "-o", "json"],
    ["version"],
    ["rm", "VALUE", "one # word"],
    ["ps", "-aq"],
    ["pods"],
    ["images", "verify", "IMAGE"],
  ]);
});

/** Returns why the words behind `isulad-ts` are refused, or "". Runs nothing. */
async function problemOf(given: string[]): Promise<string> {
  const words = given[0]?.startsWith("-")
    ? ((await commandFirst(groups, given)).argv ?? given)
    : given;
  const flags = words[0] === "daemon" ? words.slice(1) : words;
  if (flags[0]?.startsWith("-") !== false) {
    try {
      parseFlags(
        name,
        flags.filter((word) => word !== "--allow-failpoints"),
      );
      return "";
    } catch (error) {
      return messageOf(error);
    }
  }
  const said: string[] = [];
  using stdout = spyOn(process.stdout, "write").mockImplementation(() => true);
  using stderr = spyOn(process.stderr, "write").mockImplementation(
    (text) => said.push(String(text)) > 0,
  );
  const program = { name, version: "", description: "", passthrough };
  const idleGroups = { All: await idle(ungrouped(groups)) };
  const parseThemselves = [configShowName];
  const code = await runProgram({ ...program, parseThemselves, groups: idleGroups }, words);
  expect([stdout, stderr]).toBeArrayOfSize(2);
  return code === 0 ? "" : said.join("").trim();
}

/** The same commands with the same arguments; they do nothing. */
async function idle(table: SubCommandsDef): Promise<SubCommandsDef> {
  const entries = Object.entries(table).map(async ([key, value]) => {
    const command = (await resolve(value)) as CommandDef;
    const below = (await resolve(command.subCommands)) as SubCommandsDef | undefined;
    const runs = command.run === undefined ? {} : { run: () => 0 };
    const { args } = command;
    return [key, { args, ...runs, ...(below && { subCommands: await idle(below) }) }] as const;
  });
  return Object.fromEntries(await Promise.all(entries)) as SubCommandsDef;
}
