// Implements isulad-ts doctor: examines this node without a daemon.
import { defineCommand } from "citty";
import { loadConfig } from "../base/config.ts";
import { examine } from "../doctor/examine.ts";
import { thisNode, type Finding } from "../doctor/node.ts";
import { configFileArg } from "./config.ts";
import { outputArg, printJson } from "./daemon_command.ts";
import { screenColumns } from "./format.ts";
import { folded } from "./help.ts";
import { coloured, print } from "./output.ts";
import { failureCode } from "./program.ts";

export const doctor = defineCommand({
  meta: { description: "Find what keeps pods from running on this node, and how to mend it" },
  args: {
    ...configFileArg,
    ...outputArg,
  },
  run: async ({ args }) => {
    const findings = await examine(thisNode(), () => loadConfig(args.config || undefined));
    if (args.output === "json") printJson(findings);
    else {
      // A pipe gets whole lines, for grep.
      print(findingsText(findings, process.stdout.isTTY ? screenColumns() : Infinity));
    }
    return exitCodeOf(findings);
  },
});

const markColours = { ok: "green", warn: "yellow", fail: "red" } as const;

/** Warnings alone are no failure. */
export function exitCodeOf(findings: readonly Finding[]): number {
  return findings.some(({ state }) => state === "fail") ? failureCode : 0;
}

/** A line for each finding, and one more for how to mend it; each is broken into several that fit `columns`. */
export function findingsText(findings: readonly Finding[], columns: number): string {
  const width = Math.max(...findings.map(({ check }) => check.length));
  const start = 6 + width + 2;
  const lines = findings.flatMap(({ check, state, detail, mend }) => {
    const mark = state === "fail" ? "FAIL" : state;
    const shown = coloured(mark.padEnd(4), markColours[state]);
    const [first = "", ...rest] = [
      ...folded(detail.replaceAll("\n", "; "), columns - start),
      ...(mend === undefined ? [] : folded(`mend: ${mend}`, columns - start)),
    ];
    return [
      `${shown}  ${check.padEnd(width)}  ${first}`,
      ...rest.map((line) => "".padEnd(start) + line),
    ];
  });
  return lines.join("\n");
}
