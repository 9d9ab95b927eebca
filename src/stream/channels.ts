// Defines the streams between a client and a command, independent of the protocol that carries them.
import { setTimeout as sleep } from "node:timers/promises";
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

/** Between two changes of size: programs draw anew at each. */
const sizeRestMs = 20;

/**
 * Parses {"Width":80,"Height":24}{…}… from chunks, and passes on the newest size: those that come while another is
 * being set are skipped. Ignores anything else.
 */
export class NewestSize {
  #pending = "";
  #size: Size | undefined;
  #ended = false;
  #consumer: PromiseWithResolvers<void> | undefined;

  push(bytes: Buffer): void {
    if (this.#ended) return;
    const text = this.#pending + bytes.toString("latin1");
    const end = text.lastIndexOf("}") + 1;
    this.#pending = text.slice(end);
    if (this.#pending.length > messageBytesMax) this.#pending = "";
    const begin = text.lastIndexOf("{", end - 1);
    if (end === 0 || begin === -1) return;
    const size = sizeOf(text.slice(begin, text.indexOf("}", begin) + 1));
    if (size === undefined) return;
    this.#size = size;
    this.#consumer?.resolve();
  }

  end(): void {
    this.#ended = true;
    this.#consumer?.resolve();
  }

  /** For one consumer. */
  async *sizes(): AsyncGenerator<Size> {
    for (;;) {
      const size = this.#size;
      this.#size = undefined;
      if (size !== undefined) {
        yield size;
        await sleep(sizeRestMs);
      } else if (this.#ended) {
        return;
      } else {
        this.#consumer = Promise.withResolvers();
        await this.#consumer.promise;
      }
    }
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
