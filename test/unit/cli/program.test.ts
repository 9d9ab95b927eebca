// Tests the command line: its commands, options, help and errors.
import { expect, spyOn, test } from "bun:test";
import { type CommandDef, defineCommand } from "citty";
import { repeatable } from "../../../src/cli/options.ts";
import { everyValue, type Program, runProgram } from "../../../src/cli/program.ts";

let seen: unknown[] = [];
const record = (name: string): CommandDef =>
  defineCommand({
    args: {
      flag: { type: "boolean", alias: "f" },
      all: { type: "boolean", alias: "a" },
      value: { type: "string", alias: "v", default: "none" },
      each: { type: "string", ...repeatable },
      word: { type: "positional", required: name === "one", ...(name === "one" ? {} : repeatable) },
    },
    run: ({ args }) => {
      seen = [name, args.flag === true, args.value, args._];
      return args._.includes("seven") ? 7 : undefined;
    },
  }) as CommandDef;
const program: Program = {
  name: "prog",
  version: "1.2.3",
  description: "A program.",
  groups: {
    Words: { list: record("list"), one: record("one"), run: record("run") },
    Others: {
      config: {
        meta: { description: `Checks ${"and shows ".repeat(9)}files` },
        subCommands: { check: record("check"), show: record("show") },
      },
      fail: { run: () => Promise.reject(new Error("it broke")) },
      quote: {
        meta: { hidden: true },
        run: () => Promise.reject(new Error("a container says: \u001b[2J")),
      },
      hidden: { meta: { hidden: true }, run: () => 5 },
    },
  },
  passthrough: { run: { operands: 1, failureCode: 125 } },
};

async function prog(line: string) {
  const out: string[] = [];
  const keep = (text: unknown) => out.push(String(text)) > 0;
  using stdout = spyOn(process.stdout, "write").mockImplementation(keep);
  using stderr = spyOn(process.stderr, "write").mockImplementation(keep);
  seen = [];
  const code = await runProgram(program, line.split(" ").filter(Boolean));
  expect([stdout, stderr]).toBeArrayOfSize(2);
  return { code, text: out.join("").trim() };
}

test.each([
  ["list a b", ["list", false, "none", ["a", "b"]]],
  ["list -fa --value=x a", ["list", true, "x", ["a"]]],
  ["list -v=x -- -f", ["list", false, "x", ["-f"]]],
  ["config check file", ["check", false, "none", ["file"]]],
  [
    "run -v x image cmd -f --value y --help",
    ["run", false, "x", "image cmd -f --value y --help".split(" ")],
  ],
  ["run -fv x image -f", ["run", true, "x", ["image", "-f"]]],
  ["run -f -- image -x", ["run", true, "none", ["image", "-x"]]],
  ["run image -- cmd -- x", ["run", false, "none", ["image", "cmd", "--", "x"]]],
])("prog %s reaches its command", async (line, expected) => {
  expect((await prog(line)).code).toBe(0);
  expect(seen).toEqual(expected);
});

test.each([
  ["lisst", 2, "prog: Unknown command lisst; did you mean list? See prog --help."],
  ["config chek", 2, "prog: Unknown command chek; did you mean check? See prog config --help."],
  ["config", 2, "prog: prog config needs one of: check, show. See prog config --help."],
  [
    "list --vale x",
    2,
    "prog: prog list has no option --vale; did you mean --value? See prog list --help.",
  ],
  ["", 2, "prog: A command is required. See prog --help."],
  ["--value x", 2, "prog: A command is required. See prog --help."],
  ["hidden", 5, ""],
  [
    "list -vf x",
    2,
    "prog: In -vf, -v needs a value: it must be the last letter. See prog list --help.",
  ],
  ["list -=x", 2, "prog: prog list has no option -. See prog list --help."],
  ["list -az", 2, "prog: prog list has no option -az. See prog list --help."],
  ["list --value", 2, "prog: --value needs a value. See prog list --help."],
  [
    "list --value=",
    2,
    "prog: --value has an empty value: omit it for the default. See prog list --help.",
  ],
  [
    "list --value --flag",
    2,
    "prog: --value needs a value, but is followed by the option --flag. See prog list --help.",
  ],
  ["list --value x -v y", 2, "prog: --value is given twice. See prog list --help."],
  ["list -ff", 2, "prog: --flag is given twice. See prog list --help."],
  ["list --flag=yes", 2, "prog: --flag=yes takes no value. See prog list --help."],
  ["list -x", 2, "prog: prog list has no option -x. See prog list --help."],
  ["list --evil", 2, "prog: prog list has no option --evil. See prog list --help."],
  [
    "list --ea",
    2,
    "prog: prog list has no option --ea; did you mean --each? See prog list --help.",
  ],
  ["list -e", 2, "prog: prog list has no option -e; did you mean --each? See prog list --help."],
  ["one", 2, "prog: WORD is missing. See prog one --help."],
  ["lots a", 2, "prog: Unknown command lots. See prog --help."],
  ["quote", 1, "prog: a container says: \uFFFD[2J"],
  ["constructor", 2, "prog: Unknown command constructor. See prog --help."],
  ["valueOf", 2, "prog: Unknown command valueOf. See prog --help."],
  ["config __proto__", 2, "prog: Unknown command __proto__. See prog config --help."],
  ["one a b", 2, 'prog: Unexpected argument "b". See prog one --help.'],
  ["list --each a --each b", 0, ""],
  [
    "run --falg image",
    125,
    "prog: prog run has no option --falg; did you mean --flag? See prog run --help.",
  ],
  ["fail", 1, "prog: it broke"],
  ["list seven", 7, ""],
  ["--version", 0, "1.2.3"],
])("prog %s exits with %d and prints %s", async (line, code, text) => {
  expect(await prog(line)).toEqual({ code, text });
});

test("an empty argument is rejected as a command and as an operand", async () => {
  for (const argv of [[""], ["list", ""], ["run", ""]]) {
    using stderr = spyOn(process.stderr, "write").mockImplementation(() => true);
    expect(await runProgram(program, argv)).toBe(argv[0] === "run" ? 125 : 2);
    expect(String(stderr.mock.calls[0])).toMatch(/Unknown command ""|An argument is empty/);
  }
});

const programUsage = `A program.

Usage: prog COMMAND [OPTION…]
       prog [daemon] [--config FILE] [FLAG…]

Words:
  list
  one
  run

Others:
  config  Checks and shows and shows and shows and shows and shows and shows and
          shows and shows and shows files
  fail

prog COMMAND --help describes a command, prog daemon --help the
flags of the daemon. prog --version prints version and commit.`;

const listUsage = `Usage: prog list [OPTION…] [WORD…]

Arguments:
  WORD

Options:
  -f, --flag
  -a, --all
  -v, --value=VALUE  (default none)
      --each=VALUE   (repeatable)`;

test("help groups the commands, or describes one, in 80 columns", async () => {
  for (const line of ["--help", "-h", "help"]) expect((await prog(line)).text).toBe(programUsage);
  for (const line of ["list --help", "list x -h", "help list"]) {
    expect((await prog(line)).text).toBe(listUsage);
  }
  expect((await prog("config --help")).text).toContain("Usage: prog config COMMAND\n");
  expect((await prog("config check -h")).text).toContain("Usage: prog config check [OPTION…]");
});

test("everyValue collects the values of a repeated option, however it is written", async () => {
  let values: string[] = [];
  const command = defineCommand({
    args: {
      quiet: { type: "boolean", alias: "q" },
      env: { type: "string", alias: "e", ...repeatable },
      word: { type: "positional", required: false, ...repeatable },
    },
    run: ({ rawArgs }) => void (values = everyValue(rawArgs, "env")),
  }) as CommandDef;
  const one = { ...program, groups: { Words: { run: command } } };
  const line = "run -qe A=1 --env=B=2 -e=C=3 --env D -env E image -e F";
  expect(await runProgram(one, line.split(" "))).toBe(0);
  expect(values).toEqual(["A=1", "B=2", "C=3", "D", "E"]);
});
