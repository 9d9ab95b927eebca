// Runs programs to their end, with a deadline and bounded output. A program whose streams a container may
// inherit is run by monitor/spawner.ts instead.
import type { ChildProcess } from "node:child_process";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, errnoOf } from "../base/errors.ts";
import { clipStart, printable } from "../base/text.ts";
import { spawn } from "./children.ts";
import type { Descriptor } from "./descriptor.ts";
import { offerToOomKiller } from "./process.ts";
import { cannotRun, superviseGroup } from "./supervise.ts";

export type RunOptions = {
  signal: AbortSignal;
  input?: string | Uint8Array;
  env?: Record<string, string>;
  cwd?: string;
  /** Where memory runs out, the kernel kills it before the daemon and any container. */
  isExpendable?: boolean;
  /** Bytes of each stream that are kept; 1 MiB by default. */
  maxOutputBytes?: number;
  /** Of the result's stdout: latin1 has a character for each byte. */
  encoding?: "utf8" | "latin1";
  /** The program's descriptor 3. */
  inherited?: Descriptor;
  /** Bytes of one stream at which the program is killed; by default what is not kept is dropped. */
  floodBytes?: number;
};

export type RunResult = { pid: number; exitCode: number; stdout: string; stderr: string };

const messageBytesMax = 1_000;

/** Returns the end of a failed program's output, or its exit code, for a message. */
export function failureOutput({ exitCode, stdout, stderr }: Partial<RunResult>): string {
  const output = printable(stderr?.trim() || stdout?.trim() || "");
  return output === "" ? `exit code ${exitCode}` : clipStart(output, messageBytesMax);
}

/**
 * Runs a program to its end; a non-zero exit is a result. An abort kills its process group.
 * @throws CriError DEADLINE_EXCEEDED or CANCELLED with program, pid and elapsed time; NOT_FOUND without it;
 * RESOURCE_EXHAUSTED at floodBytes.
 */
export async function run(argv: string[], options: RunOptions): Promise<RunResult> {
  const program = argv[0]!;
  throwIfAborted(program, options.signal);
  try {
    const child = start(argv, options);
    if (options.isExpendable && child.pid !== undefined) offerToOomKiller(child.pid);
    const flood = new AbortController();
    for (const stream of [child.stdout!, child.stderr!]) abortAtFlood(stream, flood, options);
    const limit = options.maxOutputBytes ?? 1 << 20;
    const stdout = keepStart(child.stdout!, limit, options.encoding);
    const stderr = keepStart(child.stderr!, limit);
    if (options.input !== undefined) {
      child.stdin!.on("error", () => {}); // EPIPE: the program did not read its input; its exit code counts
      child.stdin!.end(options.input);
    }
    const signal = AbortSignal.any([options.signal, flood.signal]);
    const exitCode = await superviseGroup(child, program, signal);
    return { pid: child.pid!, exitCode, stdout: stdout(), stderr: stderr() };
  } catch (error) {
    throw cannotRun(program, error, errnoOf(error) === "ENOENT" ? "NOT_FOUND" : "INTERNAL");
  }
}

function start(argv: string[], options: RunOptions): ChildProcess {
  const inherited = options.inherited === undefined ? [] : [options.inherited.fd];
  return spawn(argv[0]!, argv.slice(1), {
    stdio: [options.input === undefined ? "ignore" : "pipe", "pipe", "pipe", ...inherited],
    env: options.env ?? process.env,
    cwd: options.cwd,
    detached: true, // a process group of its own, to be killed as a whole
  });
}

function abortAtFlood(
  stream: NodeJS.ReadableStream,
  flood: AbortController,
  { floodBytes }: RunOptions,
): void {
  if (floodBytes === undefined) return;
  let length = 0;
  stream.on("data", (chunk: Buffer) => {
    length += chunk.length;
    if (length < floodBytes) return;
    flood.abort(new CriError("RESOURCE_EXHAUSTED", `it wrote more than ${floodBytes} bytes`));
  });
}

function keepStart(
  stream: NodeJS.ReadableStream,
  bytesMax: number,
  encoding: "utf8" | "latin1" = "utf8",
): () => string {
  const chunks: Buffer[] = [];
  let length = 0;
  stream.on("data", (chunk: Buffer) => {
    if (length >= bytesMax) return;
    chunks.push(chunk.subarray(0, bytesMax - length));
    length += chunk.length;
  });
  stream.on("error", () => {}); // the exit code counts
  return () => Buffer.concat(chunks).toString(encoding);
}
