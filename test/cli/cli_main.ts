// Runs the CLI's commands like main.ts, for tests to spawn.
import { commands, passthrough } from "../../src/cli/commands.ts";
import { runProgram } from "../../src/cli/program.ts";

const main = { meta: { description: "test" }, args: { config: { type: "string" } } } as const;
const program = { name: "isulad-ts", version: "0.0.0-test", commands, passthrough, main };
process.exit(await runProgram(program, process.argv.slice(2)));
