// Notifies the service manager (sd_notify(3)) of a long start, ready, watchdog, end; only with NOTIFY_SOCKET.
import { connect } from "./cli/client.ts";
import { messageOf } from "./base/errors.ts";
import { type Log, logFailure } from "./base/log.ts";
import { sendDatagram } from "./sys/unix_socket.ts";

/** During recovery: interval and length of start-up extensions, and the time after which they end. */
const extendEveryMs = 5_000;
const extendByMs = 30_000;
const recoverMsMax = 600_000;
/** How many times in a watchdog period the daemon checks itself. */
const watchdogShare = 3;

/** Removes the variables, which are not for children: runc would pass the socket to containers. */
export function openService(log: Log): Service {
  const { NOTIFY_SOCKET: socket = "", WATCHDOG_USEC: usec, WATCHDOG_PID: pid } = process.env;
  for (const name of ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]) delete process.env[name];
  const isForUs = pid === undefined || Number(pid) === process.pid;
  const watchdogMs = isForUs ? Number(usec ?? 0) / 1000 : 0;
  return new Service({ socket, watchdogMs, log });
}

class Service implements Disposable {
  readonly #options: { socket: string; watchdogMs: number; log: Log };
  #timer: NodeJS.Timeout | undefined;

  constructor(options: { socket: string; watchdogMs: number; log: Log }) {
    this.#options = options;
  }

  /** Extends the start-up time until ready(): recovery may be long. A hung daemon does not extend it. */
  recovering(): void {
    const end = performance.now() + recoverMsMax;
    const extend = () => {
      if (performance.now() > end) return this[Symbol.dispose]();
      this.#notify("STATUS=recovering", `EXTEND_TIMEOUT_USEC=${extendByMs * 1000}`);
    };
    extend();
    this.#timer = setInterval(extend, extendEveryMs);
  }

  /** @param host the daemon's socket, "unix:///…": the watchdog is fed only while a call there succeeds. */
  ready(host: string): void {
    this[Symbol.dispose]();
    this.#notify("READY=1", "STATUS=serving CRI");
    const { socket, watchdogMs, log } = this.#options;
    if (watchdogMs === 0 || socket === "") return;
    const everyMs = watchdogMs / watchdogShare;
    let asking = false;
    const ask = async () => {
      if (asking) return;
      asking = true;
      try {
        await answers(host, everyMs);
        this.#notify("WATCHDOG=1");
      } catch (error) {
        const fields = { host, error: messageOf(error) };
        log.error(
          "watchdog notification skipped: a call to the daemon's own socket failed",
          fields,
        );
      } finally {
        asking = false;
      }
    };
    this.#timer = setInterval(() => {
      ask().catch(logFailure(log, "the watchdog is not fed"));
    }, everyMs);
  }

  ending(): void {
    this[Symbol.dispose]();
    this.#notify("STOPPING=1");
  }

  #notify(...lines: string[]): void {
    const { socket, log } = this.#options;
    if (socket === "") return;
    try {
      sendDatagram(socket, lines.join("\n"));
    } catch (error) {
      const fields = { text: lines.join(" "), error: messageOf(error) };
      log.warn("the service manager was not notified", fields);
    }
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }
}

/** Uses a new connection: an existing one does not test the socket. */
async function answers(host: string, timeoutMs: number): Promise<void> {
  const client = connect(host);
  try {
    await client.Version({}, { timeoutMs });
  } finally {
    client.close();
  }
}
