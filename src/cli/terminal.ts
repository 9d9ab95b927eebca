// Connects the user's terminal to a command in a container: raw input and window size.
import { UsageError } from "./options.ts";

/**
 * Refuses -i with -t where standard input is a pipe or a file: a terminal does not pass on the end of the input, and a
 * shell would wait for ever. @throws UsageError
 */
export function requireTerminal({ stdin, tty }: { stdin: boolean; tty: boolean }): void {
  if (!stdin || !tty || process.stdin.isTTY) return;
  throw new UsageError("-i with -t needs a terminal as standard input: leave out -t");
}

/** Puts the terminal into raw mode until disposed; does nothing if standard input is not a terminal. */
export function rawTerminal(): Disposable {
  const { stdin } = process;
  if (!stdin.isTTY) return { [Symbol.dispose]: () => {} };
  stdin.setRawMode(true);
  return {
    [Symbol.dispose]: () => {
      stdin.setRawMode(false);
    },
  };
}

/** Yields standard input. Afterwards call releaseInput(), or the process does not exit. */
export async function* input(): AsyncGenerator<Buffer> {
  for await (const chunk of process.stdin) yield chunk as Buffer;
}

export function releaseInput(): void {
  process.stdin.destroy();
}

/** Yields the terminal's size now and on each change; nothing if standard output is not a terminal. */
export async function* sizes(): AsyncGenerator<{ columns: number; rows: number }> {
  const { stdout } = process;
  if (!stdout.isTTY) return;
  let changed = Promise.withResolvers<void>();
  process.on("SIGWINCH", () => changed.resolve());
  for (;;) {
    const [columns, rows] = stdout.getWindowSize();
    yield { columns, rows };
    await changed.promise;
    changed = Promise.withResolvers();
  }
}
