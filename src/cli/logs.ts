// Implements isulad-ts logs.
import { defineCommand } from "citty";
import { durationMs } from "../base/duration.ts";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import type { Container } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { readLog } from "./log_file.ts";
import type { Candidate } from "./lookup.ts";
import { ReaderGone, readerGoneCode, type StreamName, writeOut } from "./output.ts";
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
    previous: {
      type: "boolean",
      alias: "p",
      description: "Show the attempt before, if it was not removed",
    },
    since: {
      type: "string",
      valueHint: "time",
      description: "Show only what is newer: a duration such as 90s or 2h30m, or an RFC 3339 time",
    },
    stream: {
      type: "enum",
      options: ["stdout", "stderr"] as string[],
      description: "Show only this stream",
    },
    tail: { type: "string", valueHint: "lines", description: "Show only the last lines" },
    "limit-bytes": { type: "string", valueHint: "bytes", description: "End after this many bytes" },
    timestamps: { type: "boolean", alias: "t", description: "Show the time of each line" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const options = {
        tail: args.tail === undefined ? undefined : countOf(args.tail, "--tail"),
        sinceMs: args.since === undefined ? undefined : sinceMsOf(args.since),
        only: args.stream as StreamName | undefined,
        timestamps: args.timestamps,
      };
      const limit = args["limit-bytes"];
      const bytesMax = limit === undefined ? Infinity : countOf(limit, "--limit-bytes");
      const found = await find.container(args.container);
      const id = args.previous ? await previousOf(client, found) : found.id;
      const { status } = await client.ContainerStatus({ container_id: id });
      if (!status?.log_path) {
        const why = "its pod has no log_directory, or it has no log_path";
        throw new CriError(
          "FAILED_PRECONDITION",
          `container ${found.path} has no log: ${why}; isulad-ts attach shows its output`,
        );
      }
      const ended = new AbortController();
      const follow = args.follow ? ended.signal : undefined;
      if (follow) {
        waitForExit(client, id, ended.signal)
          .finally(() => ended.abort())
          .catch(() => {});
      }
      const code = await copyLog(status.log_path, { ...options, follow }, bytesMax);
      ended.abort();
      return code;
    }),
});

/** Returns the id of the attempt before. @throws CriError NOT_FOUND */
async function previousOf(client: Client, { id, path }: Candidate): Promise<string> {
  const { containers } = await client.ListContainers({});
  const own = containers.find((container) => container.id === id);
  const attemptOf = ({ metadata }: Container) => metadata?.attempt ?? 0;
  const [previous] = containers
    .filter(
      (other) =>
        own !== undefined &&
        other.pod_sandbox_id === own.pod_sandbox_id &&
        other.metadata?.name === own.metadata?.name &&
        attemptOf(other) < attemptOf(own),
    )
    .sort((a, b) => attemptOf(b) - attemptOf(a));
  if (previous?.id) return previous.id;
  throw new CriError("NOT_FOUND", `container ${path} has no earlier attempt on this node`);
}

async function copyLog(
  path: string,
  options: Parameters<typeof readLog>[1],
  bytesMax: number,
): Promise<number> {
  let left = bytesMax;
  try {
    for await (const { stream, bytes } of readLog(path, options)) {
      await writeOut(stream, bytes.subarray(0, left));
      left -= bytes.length;
      if (left <= 0) break;
    }
    return 0;
  } catch (error) {
    if (error instanceof ReaderGone) return readerGoneCode;
    throw error;
  }
}

function countOf(text: string, option: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new UsageError(`${option} takes a number, not ${quoted(text)}`);
}

/** Returns milliseconds since the epoch. @throws UsageError */
export function sinceMsOf(text: string, nowMs: number = Date.now()): number {
  const ms = durationMs(text);
  if (ms !== undefined) return nowMs - ms;
  const at = /^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)$/.test(text) ? Date.parse(text) : NaN;
  if (!Number.isNaN(at)) return at;
  const forms = "a duration such as 90s or 2h30m, or a time such as 2026-11-21T14:28:00Z";
  throw new UsageError(`--since takes ${forms}, not ${quoted(text)}`);
}
