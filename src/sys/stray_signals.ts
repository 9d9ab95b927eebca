// Ignores signals that would end the process by default and are not meant to: a terminal's hang-up, the
// reload signals of other daemons, timers. The engine itself ignores SIGPIPE and SIGXFSZ and uses SIGPWR;
// SIGTERM, SIGINT and SIGQUIT end the process.
import type { Log } from "../base/log.ts";

const stray = [
  "SIGHUP",
  "SIGUSR1",
  "SIGUSR2",
  "SIGALRM",
  "SIGVTALRM",
  "SIGPROF",
  "SIGIO",
  "SIGXCPU",
] as const;

/** Installs handlers; SIG_IGN would be inherited by every child and container. */
export function ignoreStraySignals(log: Log): void {
  for (const signal of stray) {
    process.on(signal, () => {
      if (process.listenerCount(signal) > 1) return; // another part of this process handles it
      log.warn("ignoring a signal without a meaning here; SIGTERM ends this process", { signal });
    });
  }
}
