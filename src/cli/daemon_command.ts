// Provides the options and helpers shared by commands that call the daemon.
import { messageOf } from "../base/errors.ts";
import { printable } from "../base/text.ts";
import { type Client, connect, defaultHost } from "./client.ts";
import { hostOf } from "./endpoint.ts";
import { type Candidate, type Lookup, lookup } from "./lookup.ts";
import { UsageError } from "./options.ts";
import { print, say } from "./output.ts";
import { failureCode } from "./program.ts";
import { shownJson } from "./text.ts";

export const hostArg = {
  host: {
    type: "string",
    alias: "H",
    valueHint: "unix:///path",
    description: `The daemon's socket (default: $ISULAD_HOST, $CONTAINER_RUNTIME_ENDPOINT, crictl.yaml, ${defaultHost})`,
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

/** To be spread into an operand or option: the kind of object whose names the shell completes. */
export const completes = {
  container: { completes: "container" },
  pod: { completes: "pod" },
  image: { completes: "image" },
} as const;

const podForms = "namespace/pod, a unique name, or the beginning of an id";
const containerForms =
  "namespace/pod/container, namespace/pod with one container, a unique name, or the beginning of an id";

/** Operands and options that name what lookup.ts finds. */
export const containerOperand = {
  type: "positional",
  required: true,
  description: containerForms,
  ...completes.container,
} as const;
export const podOperand = {
  type: "positional",
  required: true,
  description: podForms,
  ...completes.pod,
} as const;
export const podArg = {
  pod: {
    type: "string",
    alias: "p",
    valueHint: "pod",
    description: "Only containers of this pod",
    ...completes.pod,
  },
} as const;

/** Runs `use` with a client of the daemon at --host, then closes it. */
export async function withClient<T>(
  args: { host?: string | undefined },
  use: (client: Client, find: Lookup) => Promise<T>,
): Promise<T> {
  using client = connect(await hostOf(args.host, process.env));
  return await use(client, lookup(client));
}

/** Acts on each id in turn and prints failures; returns a nonzero exit code if any failed. */
export async function forEach(ids: readonly string[], act: (id: string) => Promise<void>) {
  let code = 0;
  for (const id of ids) {
    try {
      await act(id);
    } catch (error) {
      say(`${id}: ${printable(messageOf(error))}`);
      code = failureCode;
    }
  }
  return code;
}

/** As forEach(), for containers by the names that the user gave; prints each name once `act` has succeeded. */
export function forEachContainer(
  find: Lookup,
  names: readonly string[],
  act: (found: Candidate) => Promise<void>,
) {
  return forEach(names, async (name) => {
    await act(await find.container(name));
    print(name);
  });
}

export function printJson(value: unknown): void {
  print(shownJson(value, 2));
}

/** Parses a number of seconds. @throws UsageError unless the text is a whole number, 0 or more. */
export function secondsOf(text: string, option: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new UsageError(`${option} takes whole seconds, not "${text}"`);
}
