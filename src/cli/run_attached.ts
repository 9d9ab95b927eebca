// Connects the terminal or standard input to the container of `isulad-ts run`. Attach shows only what comes
// after it: the output before is taken from the container's log.
import { codeOf } from "../base/errors.ts";
import { readLog } from "./log_file.ts";
import { ReaderGone, writeOut } from "./output.ts";
import type { Client } from "./client.ts";
import { runRemote } from "./stream_client.ts";
import { waitForExit } from "./wait_for_exit.ts";
import { input, rawTerminal, releaseInput, sizes } from "./terminal.ts";

/** How long a prompt may wait for the log, which gets within this time the lines that Attach has shown. */
const startMs = 200;
/** The daemon commits an exit a moment after the terminal closes. */
const exitMs = 2_000;

/** Shows the container's terminal until the container ends. @throws ReaderGone, CriError */
export async function showTerminal(
  client: Client,
  { id, logPath, stdin }: { id: string; logPath: string; stdin: boolean },
): Promise<void> {
  const held: Buffer[] = [];
  let isHeld = true;
  const release = async () => {
    isHeld = false;
    await writeOut("stdout", joined(await logged(logPath), Buffer.concat(held)));
  };
  const request = { container_id: id, stdin, stdout: true, tty: true };
  const url = await attachUrl(client, request);
  if (url === undefined) return await release();
  using _ = stdin ? rawTerminal() : undefined;
  const timer = Promise.withResolvers<void>();
  const delay = setTimeout(() => {
    release().then(timer.resolve, timer.reject);
  }, startMs);
  timer.promise.catch(() => {}); // write() reports it
  try {
    await runRemote(url, {
      write: async (stream, bytes) => {
        if (isHeld) {
          held.push(Buffer.from(bytes));
          return;
        }
        await timer.promise;
        await writeOut(stream, bytes);
      },
      ...(stdin ? { stdin: input() } : {}),
      sizes: sizes(),
    });
  } catch (error) {
    // Attach fails if the container ends in this moment; the log has its output.
    const ended = await waitForExit(client, id, AbortSignal.timeout(exitMs));
    if (error instanceof ReaderGone || ended === undefined) throw error;
  } finally {
    clearTimeout(delay);
    if (stdin) releaseInput();
    await (isHeld ? release() : timer.promise);
  }
}

/** Passes standard input to the container until one of both ends; the output goes elsewhere. */
export async function passInput(client: Client, id: string): Promise<void> {
  const url = await attachUrl(client, { container_id: id, stdin: true });
  if (url === undefined) return;
  try {
    await runRemote(url, { stdin: input(), write: () => Promise.resolve() });
  } finally {
    releaseInput();
  }
}

/** Returns undefined if the container has ended already. */
async function attachUrl(client: Client, request: Parameters<Client["Attach"]>[0]) {
  try {
    return (await client.Attach(request)).url ?? undefined;
  } catch (error) {
    if (codeOf(error) === "FAILED_PRECONDITION") return undefined;
    throw error;
  }
}

/** Returns a log as the terminal has shown it: with the carriage returns that the log leaves out. */
async function logged(path: string): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  for await (const { bytes } of readLog(path)) parts.push(bytes);
  const text = Buffer.concat(parts).toString("latin1"); // keeps every byte
  return Buffer.from(text.replaceAll("\n", "\r\n"), "latin1");
}

/** Joins two parts of one output; the end of the first may be the beginning of the second. */
export function joined(first: Buffer, second: Buffer): Buffer {
  for (let common = Math.min(first.length, second.length); common > 0; common--) {
    if (first.subarray(first.length - common).equals(second.subarray(0, common))) {
      return Buffer.concat([first, second.subarray(common)]);
    }
  }
  return Buffer.concat([first, second]);
}
