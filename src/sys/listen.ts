// Listens on an address of this node, also on one that the node gets only later: edge nodes get their addresses by
// DHCP long after the daemon has started, and must run their pods until then.
import { once } from "node:events";
import type { Server } from "node:net";
import { errnoOf, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { hostPort } from "./socket_address.ts";

export const retryMsDefault = 5_000;

type Place = { address: string; port: number };
type Options = {
  /** What is served, for messages: "metrics". */
  what: string;
  log: Log;
  retryMs?: number;
};

/**
 * Returns once the server listens. If the address is not this node's, returns at once and tries again in the
 * background, until the result is disposed of. Logs the failures of a server that listens.
 * @throws the system's error for any other reason, such as EADDRINUSE.
 */
export async function listenWhenPresent(
  server: Server,
  place: Place,
  options: Options,
): Promise<Disposable> {
  const { what, log, retryMs = retryMsDefault } = options;
  let timer: NodeJS.Timeout | undefined;
  const ended = { [Symbol.dispose]: () => clearTimeout(timer) };
  try {
    await listen(server, place, options);
    return ended;
  } catch (error) {
    if (errnoOf(error) !== "EADDRNOTAVAIL") throw error;
  }
  const fields = { address: hostPort(place.address, place.port) };
  const next = `trying again every ${retryMs / 1000} s until the node has it`;
  log.warn(`no ${what} yet: the address is none of this node's, ${next}`, fields);
  let lastError = "EADDRNOTAVAIL";
  const retry = () => {
    listen(server, place, options).then(
      () => log.info(`serving ${what}: the node has the address now`, fields),
      (error: unknown) => {
        const errno = errnoOf(error) ?? "";
        if (errno !== lastError) log.warn(`no ${what} yet`, { ...fields, error: messageOf(error) });
        lastError = errno;
        again();
      },
    );
  };
  const again = () => {
    timer = setTimeout(retry, retryMs);
    timer.unref();
  };
  again();
  return ended;
}

async function listen(
  server: Server,
  { address, port }: Place,
  { what, log }: Options,
): Promise<void> {
  server.listen(port, address);
  await once(server, "listening"); // throws the server's error
  server.on("error", (error) => log.warn(`serving ${what} failed`, { error: error.message }));
}
