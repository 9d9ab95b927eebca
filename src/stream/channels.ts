// Defines the streams between a client and a command, independent of the protocol that carries them.
import { jsonText, jsonValue } from "../base/json.ts";

/** The streams requested in Exec or Attach. */
export type WantedStreams = { stdin: boolean; stdout: boolean; stderr: boolean; tty: boolean };

/** The exit code, or the reason that the command did not run. */
export type Outcome = { exitCode: number } | { error: string };

export type Size = { columns: number; rows: number };

/** The server's side of one connected client. */
export type Channels = {
  /** Ends when the client half-closes or disconnects. */
  stdin: AsyncIterable<Buffer>;
  /** The client's terminal sizes as they change. */
  resizes: AsyncIterable<Size>;
  /** Waits while the client is slow. @throws if it has disconnected. */
  write(stream: "stdout" | "stderr", bytes: Uint8Array): Promise<void>;
  /** Sends the outcome and ends the streams. @throws if the client has disconnected. */
  finish(outcome: Outcome): Promise<void>;
  /** Discards what the client has sent and still sends: nothing reads it any more. */
  [Symbol.dispose](): void;
};

/** Serves a client until its command ends. hangup: aborts when the client disconnects. */
export type Serve = (channels: Channels, hangup: AbortSignal) => Promise<Outcome>;

/** Encodes the outcome as Kubernetes' Status, for the error stream of v4 and v5. */
export function statusJson(outcome: Outcome): Buffer {
  return Buffer.from(jsonText(statusOf(outcome)));
}

const failure = { metadata: {}, status: "Failure" };

function statusOf(outcome: Outcome): object {
  if ("error" in outcome) {
    const message = `Internal error occurred: ${outcome.error}`;
    const details = { causes: [{ message: outcome.error }] };
    return { ...failure, message, reason: "InternalError", details, code: 500 };
  }
  const { exitCode } = outcome;
  if (exitCode === 0) return { metadata: {}, status: "Success" };
  const details = { causes: [{ reason: "ExitCode", message: String(exitCode) }] };
  return { ...failure, message: statusText(outcome), reason: "NonZeroExitCode", details };
}

/** Encodes the outcome for v1 to v3, where any text means failure. */
export function statusText(outcome: Outcome): string {
  if ("error" in outcome) return outcome.error;
  if (outcome.exitCode === 0) return "";
  return `command terminated with non-zero exit code: ${outcome.exitCode}`;
}

const sizeMax = 65_535;
const messageBytesMax = 1024;

/** Parses {"Width":80,"Height":24}{…}… from chunks; ignores anything else. */
export class SizeReader {
  #pending = "";

  *push(bytes: Buffer): Generator<Size> {
    this.#pending += bytes.toString("latin1");
    for (let end = this.#pending.indexOf("}"); end !== -1; end = this.#pending.indexOf("}")) {
      const size = sizeOf(this.#pending.slice(0, end + 1));
      this.#pending = this.#pending.slice(end + 1);
      if (size !== undefined) yield size;
    }
    if (this.#pending.length > messageBytesMax) this.#pending = "";
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
