// Writes to standard output and error: lines for the user, and bytes with backpressure.
import { messageOf } from "../base/errors.ts";
import { printable } from "../base/text.ts";

/** Prints a line of the command's result to standard output; may have coloured() parts. */
export function print(line: string): void {
  process.stdout.write(`${cleaned(line)}\n`);
}

/** Prints a message to standard error; may have coloured() parts. */
export function say(line: string): void {
  process.stderr.write(`${cleaned(line)}\n`);
}

/** Lines may quote containers, images and registries: only the sequences of coloured() reach a terminal. */
function cleaned(line: string): string {
  const parts = line.split(ownColours);
  return parts.map((part, at) => (at % 2 === 1 ? part : printable(part))).join("");
}

// eslint-disable-next-line no-control-regex
const ownColours = /(\u001b\[(?:31|32|33|0)m)/;

const colours = { red: 31, yellow: 33, green: 32 } as const;

/** Colours a text for standard output or error if it is a terminal and NO_COLOR is not set (no-color.org). */
export function coloured(
  text: string,
  colour: keyof typeof colours,
  stream: StreamName = "stdout",
): string {
  const isWanted = process[stream].isTTY && !process.env["NO_COLOR"];
  return isWanted ? `\u001b[${colours[colour]}m${text}\u001b[0m` : text;
}

/** The reader of the output has closed it, as in `isulad-ts logs … | head`. */
export class ReaderGone extends Error {}

/** Exit code of a program that SIGPIPE ended. */
export const readerGoneCode = 141;

export type StreamName = "stdout" | "stderr";

/** True once writeOut() has been used: it passes failures to its caller, which may have to remove a pod first. */
let isStdoutAwaited = false;

/**
 * Ends the process when its result cannot be written: silently with 141 if the reader has gone, else with 1. A
 * lost message on standard error ends nothing.
 */
export function endAtFailedOutput(): void {
  process.stderr.on("error", () => {});
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (isStdoutAwaited) return;
    if (error.code === "EPIPE") process.exit(readerGoneCode);
    say(`isulad-ts: cannot write to standard output: ${messageOf(error)}`);
    process.exit(1);
  });
}

/** Resolves when the bytes are written. @throws ReaderGone */
export async function writeOut(stream: StreamName, bytes: Uint8Array): Promise<void> {
  const target = process[stream];
  isStdoutAwaited ||= stream === "stdout";
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  target.once("error", reject); // Without a listener the error would end the process.
  target.write(bytes, (error) => (error ? reject(error) : resolve()));
  try {
    await promise;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EPIPE") throw new ReaderGone("the reader has closed the output");
    throw error;
  } finally {
    // After a failure the listener stays: the event comes later.
    await promise.then(() => target.off("error", reject)).catch(() => {});
  }
}
