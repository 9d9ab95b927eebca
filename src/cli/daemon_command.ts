// What all commands that call the daemon share.
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
    description: `The daemon's socket (else $ISULAD_HOST, else ${defaultHost})`,
  },
} as const;

const outputs: string[] = ["table", "json"];
export const outputArg = {
  output: {
    type: "enum",
    alias: "o",
    options: outputs,
    default: "table",
    description: "How to print",
  },
} as const;

export const quietArg = {
  quiet: { type: "boolean", alias: "q", description: "Print ids only" },
} as const;

/** citty takes "--no-trunc" for the opposite of "--trunc", so that is what it must know. */
export const truncArg = {
  trunc: {
    type: "boolean",
    default: true,
    description: "Short ids",
    negativeDescription: "Whole ids",
  },
} as const;

/** Whether ids are to be printed whole. */
export function isWhole(args: { trunc?: boolean }): boolean {
  return args.trunc === false;
}

/** Runs `use` with a client of the daemon that --host names, and closes it. */
export async function withClient<T>(
  args: { host?: string | undefined },
  use: (client: Client) => Promise<T>,
): Promise<T> {
  using client = connect(hostOf(args));
  return await use(client);
}

export function hostOf(args: { host?: string | undefined }): string {
  return args.host || process.env["ISULAD_HOST"] || defaultHost;
}

/** Does one after another, reports each failure, and goes on; the exit code tells of any. */
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
