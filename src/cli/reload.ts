// Implements isulad-ts reload: the daemon reads its configuration again.
import { defineCommand } from "citty";
import type { ReloadResponse } from "../proto/types.ts";
import { hostArg, withClient } from "./daemon_command.ts";

export const reload = defineCommand({
  meta: { description: "Apply changes of the configuration files to the running daemon" },
  args: hostArg,
  run: ({ args }) =>
    withClient(args, async (client) => {
      process.stdout.write(reloadText(await client.Reload({})));
    }),
});

export function reloadText({ applied, restart, warnings }: ReloadResponse): string {
  const lines = (warnings ?? []).map((warning) => `warning: ${warning}`);
  if (applied && applied.length > 0) lines.push(`applied: ${applied.join(", ")}`);
  if (restart && restart.length > 0) {
    lines.push(`needs a restart of the daemon: ${restart.join(", ")}`);
  }
  return `${lines.join("\n") || "nothing has changed"}\n`;
}
