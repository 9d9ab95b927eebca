// The person's terminal while a command in a container has it: every key goes there, and its size.

/** Keys go through unchanged, until this is disposed of; nothing where standard input is no terminal. */
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

/** Standard input as it comes. Once begun it must be let go of (`releaseInput`), or we never end. */
export async function* input(): AsyncGenerator<Buffer> {
  for await (const chunk of process.stdin) yield chunk as Buffer;
}

export function releaseInput(): void {
  process.stdin.destroy();
}

/** The terminal's size now and at each change; none where standard output is no terminal. */
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
