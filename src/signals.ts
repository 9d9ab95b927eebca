// Handles the daemon's signals: SIGUSR1 writes a dump from the start on, SIGHUP reloads, SIGINT, SIGTERM and
// SIGQUIT end it.
import { coalesced } from "./base/coalesced.ts";
import { type Log, logFailure } from "./base/log.ts";
import type { Context } from "./cri/context.ts";

/** context: undefined while the daemon's parts are being made. */
export function dumpOnSignal({
  state,
  log,
  context,
}: {
  state: string;
  log: Log;
  context: () => Context | undefined;
}): void {
  const dump = coalesced("another dump", async () => {
    const path = await (await import("./debug.ts")).writeDump(state, context());
    log.info("dump written", { path });
  });
  process.on("SIGUSR1", () => {
    dump().catch(logFailure(log, "SIGUSR1: the dump was not written"));
  });
}

/** Reloads the configuration at SIGHUP, which has no effect before this is called: the start reads the files itself. */
export function reloadOnSignal(context: Context, log: Log): void {
  process.on("SIGHUP", () => {
    context.reload().catch(logFailure(log, "SIGHUP had no effect"));
  });
}

export function endSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    for (const signal of ["SIGINT", "SIGTERM", "SIGQUIT"] as const) process.once(signal, resolve);
  });
}
