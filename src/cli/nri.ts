// Implements isulad-ts nri: lists NRI plugins.
import { defineCommand } from "citty";
import { toBigInt } from "../base/int64.ts";
import { printable } from "../base/text.ts";
import { isulad } from "../proto/messages.js";
import type { NriPlugin } from "../proto/types.ts";
import { diff } from "./nri_diff.ts";
import { hostArg, outputArg, printJson, withClient } from "./daemon_command.ts";
import { screenTable } from "./format.ts";
import { protoJson } from "./text.ts";

const eventCount = 14;
/** Longer lists of events show only their count; -o json names them. */
const namedMax = 3;

export const nri = defineCommand({
  meta: { description: "List NRI plugins with their calls, latencies and last errors" },
  subCommands: { diff },
  args: { ...outputArg, ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const response = await client.NriPlugins({});
      if (args.output === "json") {
        const form = { longs: Number, defaults: true };
        printJson(protoJson(isulad.v1.NriPluginsResponse.toObject(response, form)));
      } else process.stdout.write(pluginTable(response.plugins));
    }),
});

/** Formats a row for each plugin; the daemon lists them in the order in which they receive events. */
function pluginTable(plugins: readonly NriPlugin[]): string {
  const header = "PLUGIN,KIND,NRI,CALLS,FAILED,MEAN MS,MAX MS,EVENTS,LAST ERROR".split(",");
  const columns = {
    dispensable: ["FAILED", "MAX MS", "NRI", "KIND"],
    narrow: ["EVENTS", "MEAN MS", "CALLS"],
  };
  return screenTable([header, ...plugins.map(row)], columns, false);
}

function row(plugin: NriPlugin): string[] {
  const calls = plugin.calls ?? [];
  const events = plugin.events ?? [];
  const sum = (values: (number | bigint)[]) => values.reduce<number>((a, b) => a + Number(b), 0);
  const count = sum(calls.map((call) => toBigInt(call.count)));
  const totalMs = sum(calls.map(({ total_ms }) => total_ms ?? 0));
  return [
    plugin.id ?? "",
    plugin.kind ?? "",
    plugin.version || "before 0.12",
    String(count),
    String(sum(calls.map((call) => toBigInt(call.failed)))),
    count === 0 ? "-" : (totalMs / count).toFixed(2),
    Math.max(0, ...calls.map(({ max_ms }) => max_ms ?? 0)).toFixed(2),
    events.length > namedMax ? `${events.length} of ${eventCount}` : events.join(","),
    printable(plugin.last_error ?? "").replaceAll(/\s+/g, " "),
  ];
}
