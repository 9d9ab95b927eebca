// Signals that ask us to end, while there is something to clean up first.
import { constants } from "node:os";

const names = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

export type Interrupts = Disposable & {
  /** Aborted by the first signal. */
  readonly signal: AbortSignal;
  /** 128 + the first signal's number, once there was one. */
  readonly exitCode: number | undefined;
  /** Calls back for each signal, those before too, with how many there were. */
  onEach(react: (count: number) => void): void;
};

/** From now on the signals no longer end the process, until it is disposed of. */
export function catchInterrupts(): Interrupts {
  const abort = new AbortController();
  let exitCode: number | undefined;
  let count = 0;
  let react = (_count: number): void => {};
  const caught = (name: NodeJS.Signals): void => {
    exitCode ??= 128 + constants.signals[name];
    abort.abort();
    react(++count);
  };
  for (const name of names) process.on(name, caught);
  return {
    signal: abort.signal,
    get exitCode() {
      return exitCode;
    },
    onEach(next) {
      react = next;
      if (count > 0) next(count);
    },
    [Symbol.dispose]: () => {
      for (const name of names) process.off(name, caught);
    },
  };
}
