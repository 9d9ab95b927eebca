// Provides the options and helpers shared by commands that call the daemon.
import { messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { type Client, connect, defaultHost } from "./client.ts";
import { UsageError } from "./options.ts";
import { print, say } from "./output.ts";
import { failureCode } from "./program.ts";

export const hostArg = {
  host: {
    type: "string",
    alias: "H",
    valueHint: "unix:///path",
    description: `The daemon's socket (default: $ISULAD_HOST, then ${defaultHost})`,
  },
} as const;

export const outputArg = {
  output: {
    type: "enum",
    alias: "o",
    options: ["table", "json"] as string[],
    default: "table",
    description: "Output format",
  },
} as const;

export const quietArg = {
  quiet: { type: "boolean", alias: "q", description: "Print ids only" },
} as const;

/** citty derives --no-trunc from --trunc. */
export const truncArg = {
  trunc: {
    type: "boolean",
    default: true,
    description: "Shorten ids",
    negativeDescription: "Do not shorten ids",
  },
} as const;

/** Returns whether to print ids in full. */
export function showsFullIds(args: { trunc?: boolean }): boolean {
  return args.trunc === false;
}

/** Runs `use` with a client of the daemon at --host, then closes it. */
export async function withClient<T>(
  args: { host?: string | undefined },
  use: (client: Client) => Promise<T>,
): Promise<T> {
  using client = connect(args.host || process.env["ISULAD_HOST"] || defaultHost);
  return await use(client);
}

/** Acts on each id in turn and prints failures; returns a nonzero exit code if any failed. */
export async function forEach(ids: readonly string[], act: (id: string) => Promise<void>) {
  let code = 0;
  for (const id of ids) {
    try {
      await act(id);
    } catch (error) {
      say(`${id}: ${messageOf(error)}`);
      code = failureCode;
    }
  }
  return code;
}

export function printJson(value: unknown): void {
  print(jsonText(value, 2));
}

/** @throws UsageError unless it is a whole number of seconds, 0 or more. */
export function secondsOf(text: string, option: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new UsageError(`${option} takes whole seconds, not "${text}"`);
}
