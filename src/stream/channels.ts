// The streams between a client and a command, whatever protocol carries them.
import { jsonText, jsonValue } from "../base/json.ts";

/** What the client was promised by Exec or Attach. */
export type Wanted = { stdin: boolean; stdout: boolean; stderr: boolean; tty: boolean };

/** How it ended: an exit code, or what kept it from running. */
export type Outcome = { exitCode: number } | { error: string };

export type Size = { columns: number; rows: number };

/** The server's side of one client that has connected. */
export type Channels = {
  /** What the client types, to its half-close or its end. */
  stdin: AsyncIterable<Buffer>;
  /** Sizes of the client's terminal as they change. */
  resizes: AsyncIterable<Size>;
  /** Waits while the client is slow. @throws when it has gone. */
  write(stream: "stdout" | "stderr", bytes: Uint8Array): Promise<void>;
  /** Tells how it ended, and that nothing more comes. @throws when the client has gone. */
  finish(outcome: Outcome): Promise<void>;
};

/** Streams end, and the client's connection with them. */
export type Serve = (channels: Channels, gone: AbortSignal) => Promise<Outcome>;

/** Kubernetes's Status (v4 and v5 on the error stream) as clients read it. */
export function statusJson(outcome: Outcome): Buffer {
  return Buffer.from(jsonText(statusOf(outcome)));
}

function statusOf(outcome: Outcome): object {
  if ("error" in outcome) {
    const message = `Internal error occurred: ${outcome.error}`;
    const details = { causes: [{ message: outcome.error }] };
    return {
      metadata: {},
      status: "Failure",
      message,
      reason: "InternalError",
      details,
      code: 500,
    };
  }
  const { exitCode } = outcome;
  if (exitCode === 0) return { metadata: {}, status: "Success" };
  const details = { causes: [{ reason: "ExitCode", message: String(exitCode) }] };
  const message = statusText(outcome);
  return { metadata: {}, status: "Failure", message, reason: "NonZeroExitCode", details };
}

/** The same for v1 to v3, where any text is a failure. */
export function statusText(outcome: Outcome): string {
  if ("error" in outcome) return outcome.error;
  if (outcome.exitCode === 0) return "";
  return `command terminated with non-zero exit code: ${outcome.exitCode}`;
}

const sizeMax = 65_535;
const messageBytesMax = 1024;

/** {"Width":80,"Height":24}, one JSON object after another, cut anywhere; anything else is ignored. */
export class SizeReader {
  #kept = "";

  *push(bytes: Buffer): Generator<Size> {
    this.#kept += bytes.toString("latin1");
    for (let end = this.#kept.indexOf("}"); end !== -1; end = this.#kept.indexOf("}")) {
      const size = sizeOf(this.#kept.slice(0, end + 1));
      this.#kept = this.#kept.slice(end + 1);
      if (size !== undefined) yield size;
    }
    if (this.#kept.length > messageBytesMax) this.#kept = "";
  }
}

function sizeOf(text: string): Size | undefined {
  try {
    const { Width: columns, Height: rows } = jsonValue(text) as Record<string, unknown>;
    return isSize(columns) && isSize(rows) ? { columns, rows } : undefined;
  } catch {
    return undefined;
  }
}

function isSize(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) > 0 && Number(value) <= sizeMax;
}
