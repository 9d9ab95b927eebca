// Runs programs to their end, with a deadline and bounded output. A program whose streams a container may
// inherit is run by monitor/spawner.ts instead.
import type { ChildProcess } from "node:child_process";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, errnoOf } from "../base/errors.ts";
import { clipStart, printable } from "../base/text.ts";
import { spawn } from "./children.ts";
import type { Descriptor } from "./descriptor.ts";
import { offerToOomKiller } from "./process.ts";
import { ProgramPipes } from "./program_pipes.ts";
import { cannotRun, superviseGroup } from "./supervise.ts";

export type RunOptions = {
  signal: AbortSignal;
  input?: string | Uint8Array;
  env?: Record<string, string>;
  cwd?: string;
  /** When memory runs out, the kernel kills this program before the daemon and any container. */
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
 * @throws CriError DEADLINE_EXCEEDED or CANCELLED with program, pid and elapsed time; NOT_FOUND if there is no such
 * program; RESOURCE_EXHAUSTED at floodBytes.
 */
export async function run(argv: string[], options: RunOptions): Promise<RunResult> {
  const program = argv[0]!;
  throwIfAborted(program, options.signal);
  const { maxOutputBytes: bytesMax = 1 << 20, floodBytes = Infinity } = options;
  try {
    const flood = new AbortController();
    const onFlood = () => flood.abort(flooded(floodBytes));
    const input = options.input === undefined ? undefined : Buffer.from(options.input);
    using pipes = new ProgramPipes({ input, bytesMax, floodBytes, onFlood });
    const child = start(argv, pipes, options);
    if (options.isExpendable && child.pid !== undefined) offerToOomKiller(child.pid);
    pipes.begin();
    const signal = AbortSignal.any([options.signal, flood.signal]);
    const exitCode = await superviseGroup(child, program, signal);
    const [stdout, stderr] = await pipes.outputs();
    // It may have written too much at its very end.
    throwIfAborted(program, flood.signal);
    return {
      pid: child.pid!,
      exitCode,
      stdout: stdout!.toString(options.encoding),
      stderr: stderr!.toString(),
    };
  } catch (error) {
    throw cannotRun(program, error, errnoOf(error) === "ENOENT" ? "NOT_FOUND" : "INTERNAL");
  }
}

function flooded(floodBytes: number): CriError {
  return new CriError("RESOURCE_EXHAUSTED", `it wrote more than ${floodBytes} bytes`);
}

function start(argv: string[], { stdio }: ProgramPipes, options: RunOptions): ChildProcess {
  const inherited = options.inherited === undefined ? [] : [options.inherited.fd];
  return spawn(argv[0]!, argv.slice(1), {
    stdio: [...stdio, ...inherited],
    env: options.env ?? process.env,
    cwd: options.cwd,
    detached: true, // a process group of its own, to be killed as a whole
  });
}
