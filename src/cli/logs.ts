// Implements isulad-ts logs.
import { defineCommand } from "citty";
import { CriError } from "../base/errors.ts";
import { readLog } from "./log_file.ts";
import { ReaderGone, readerGoneCode, writeOut } from "./output.ts";
import { UsageError } from "./options.ts";
import { waitForExit } from "./wait_for_exit.ts";
import { containerOperand, hostArg, withClient } from "./daemon_command.ts";

export const logs = defineCommand({
  meta: { description: "Show the output of a container" },
  args: {
    container: containerOperand,
    follow: {
      type: "boolean",
      alias: "f",
      description: "Follow the output until the container exits",
    },
    tail: { type: "string", valueHint: "lines", description: "Show only the last lines" },
    timestamps: { type: "boolean", alias: "t", description: "Show the time of each line" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const tail = args.tail === undefined ? undefined : linesOf(args.tail);
      const { id, path } = await find.container(args.container);
      const { status } = await client.ContainerStatus({ container_id: id });
      if (!status?.log_path) {
        const why = "its pod has no log_directory, or it has no log_path";
        throw new CriError("FAILED_PRECONDITION", `container ${path} has no log: ${why}`);
      }
      const ended = new AbortController();
      const follow = args.follow ? ended.signal : undefined;
      if (follow) {
        waitForExit(client, id)
          .finally(() => ended.abort())
          .catch(() => {});
      }
      return await copyLog(status.log_path, { tail, follow, timestamps: args.timestamps });
    }),
});

async function copyLog(path: string, options: Parameters<typeof readLog>[1]): Promise<number> {
  try {
    for await (const { stream, bytes } of readLog(path, options)) await writeOut(stream, bytes);
    return 0;
  } catch (error) {
    if (error instanceof ReaderGone) return readerGoneCode;
    throw error;
  }
}

function linesOf(text: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new UsageError(`--tail takes a number of lines, not "${text}"`);
}
