// isulad-ts logs and exec.
import { defineCommand } from "citty";
import { CriError, messageOf } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { readLog } from "./log_file.ts";
import { ReaderGone, readerGoneCode, say, writeOut } from "./output.ts";
import { UsageError } from "./program.ts";
import { startFailureCode } from "./start_failure.ts";
import { waitForExit } from "./wait.ts";
import { hostArg, secondsOf, withClient } from "./shared.ts";

// An exec has no deadline of its own with --timeout 0; with one, the daemon's answer comes first.
const execMarginMs = 30_000;

export const logs = defineCommand({
  meta: { description: "Show what a container wrote" },
  args: {
    container: { type: "positional", description: "Id of a container, or how it begins" },
    follow: { type: "boolean", alias: "f", description: "Go on until the container ends" },
    tail: { type: "string", valueHint: "lines", description: "Only the last lines" },
    timestamps: { type: "boolean", alias: "t", description: "The time before each line" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const tail = args.tail === undefined ? undefined : linesOf(args.tail);
      const { status } = await client.ContainerStatus({ container_id: args.container });
      if (!status?.log_path) {
        throw new CriError(
          "FAILED_PRECONDITION",
          `${args.container} keeps no log: its pod has no log directory, or it no log path`,
        );
      }
      const ended = new AbortController();
      const follow = args.follow ? ended.signal : undefined;
      if (follow)
        void waitForExit(client, status.id ?? "")
          .finally(() => ended.abort())
          .catch(() => {});
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

export const exec = defineCommand({
  meta: { description: "Run a command in a container and print what it wrote when it has ended" },
  args: {
    container: { type: "positional", description: "Id of a container; the command follows" },
    sync: {
      type: "boolean",
      alias: "s",
      description: "As crictl has it; there is no other way yet",
    },
    interactive: { type: "boolean", alias: "i", description: "Not there yet" },
    tty: { type: "boolean", alias: "t", description: "Not there yet" },
    timeout: {
      type: "string",
      default: "0",
      valueHint: "seconds",
      description: "Kill the command after so long; 0 waits",
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const [container_id = "", ...cmd] = args._;
      if (args.interactive || args.tty) {
        throw new UsageError("exec gives neither input nor a terminal yet: leave -i and -t away");
      }
      if (cmd.length === 0) throw new UsageError("Say which command to run");
      const seconds = secondsOf(args.timeout, "--timeout");
      const timeoutMs = seconds === 0 ? 0 : seconds * 1000 + execMarginMs;
      const request = { container_id, cmd, timeout: toLong(seconds) };
      let answer;
      try {
        answer = await client.ExecSync(request, { timeoutMs });
      } catch (error) {
        say(`isulad-ts: ${messageOf(error)}`);
        return startFailureCode(messageOf(error));
      }
      await writeOut("stdout", answer.stdout ?? new Uint8Array());
      await writeOut("stderr", answer.stderr ?? new Uint8Array());
      return answer.exit_code ?? 0;
    }),
});
