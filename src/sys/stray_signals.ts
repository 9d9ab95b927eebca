// Keeps the process alive through signals that would end it by default, though nobody asks for its end: a
// terminal that closes, a request to read logs or configuration anew that other daemons have, a timer.
// SIGPIPE and SIGXFSZ are ignored by the engine, which also uses SIGPWR; SIGTERM, SIGINT and SIGQUIT ask for the
// end.
import type { Log } from "../base/log.ts";

const survived = [
  "SIGHUP",
  "SIGUSR1",
  "SIGUSR2",
  "SIGALRM",
  "SIGVTALRM",
  "SIGPROF",
  "SIGIO",
  "SIGXCPU",
] as const;

/** From now on. Handlers, because ignored signals would be ignored in every child and container too. */
export function ignoreStraySignals(log: Log): void {
  for (const signal of survived) {
    process.on(signal, () => {
      log.warn("a signal means nothing here and was ignored; SIGTERM ends this process", {
        signal,
      });
    });
  }
}
