// Catches SIGINT, SIGTERM and SIGHUP, so that commands can clean up before they exit.
import { constants } from "node:os";

const names = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

export type Interrupts = Disposable & {
  /** Aborts on the first signal. */
  readonly signal: AbortSignal;
  /** 128 + the first signal's number; undefined before it. */
  readonly exitCode: number | undefined;
  /** Calls back on each signal with the count so far; at once if there was one already. */
  onEach(react: (count: number) => void): void;
};

/** Keeps the signals from ending the process until disposed. */
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
