// Runs the CLI's commands like main.ts, for tests to spawn.
import { groups, passthrough } from "../../src/cli/commands.ts";
import { configShowName } from "../../src/cli/config.ts";
import { runProgram } from "../../src/cli/program.ts";

const program = {
  name: "isulad-ts",
  version: "0.0.0-test",
  description: "test",
  groups,
  passthrough,
  parseThemselves: [configShowName],
};
process.exit(await runProgram(program, process.argv.slice(2)));
