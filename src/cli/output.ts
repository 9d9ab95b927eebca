// Our own standard output and error: lines for a person, and bytes at the reader's pace.

/** A line on standard output: what was asked for. */
export function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** A line on standard error: what a person should know besides. */
export function say(line: string): void {
  process.stderr.write(`${line}\n`);
}

/** Whoever read our output has gone, as in `isulad-ts logs … | head`: nothing more to do. */
export class ReaderGone extends Error {}

/** The exit code of a program that SIGPIPE ends. */
export const readerGoneCode = 141;

export type StreamName = "stdout" | "stderr";

/** Waits until the bytes are taken. @throws ReaderGone */
export async function writeOut(stream: StreamName, bytes: Uint8Array): Promise<void> {
  const target = process[stream];
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const failed = (error: Error) => reject(error);
  target.once("error", failed); // Without a listener Node would end the process here.
  target.write(bytes, (error) => (error ? reject(error) : resolve()));
  try {
    await promise;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EPIPE") throw new ReaderGone("the reader of our output has gone");
    throw error;
  } finally {
    // After a failure the event comes late, so the listener stays.
    await promise.then(() => target.off("error", failed)).catch(() => {});
  }
}
