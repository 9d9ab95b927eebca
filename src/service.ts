// What the daemon tells the service manager that started it (sd_notify(3)): that it is ready, that it
// needs longer, that it still answers. Without one (no NOTIFY_SOCKET) nothing is told.
import { connect } from "./cli/client.ts";
import { messageOf } from "./base/errors.ts";
import { type Log, logFailure } from "./base/log.ts";
import { sendDatagram } from "./sys/unix_socket.ts";

/** While it recovers, how often it asks for more time and for how much, and when it stops asking. */
const extendEveryMs = 5_000;
const extendByMs = 30_000;
const recoverMsMax = 600_000;
/** Of the watchdog's time, when an answer is asked for and how long it may take. */
const watchdogShare = 3;

/**
 * The variables are taken out of the environment: the daemon's children are not the service, and runc
 * would hand the socket to containers.
 */
export function openService(log: Log): Service {
  const { NOTIFY_SOCKET: socket = "", WATCHDOG_USEC: usec, WATCHDOG_PID: pid } = process.env;
  for (const name of ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]) delete process.env[name];
  const isOurs = pid === undefined || Number(pid) === process.pid;
  const watchdogMs = isOurs ? Number(usec ?? 0) / 1000 : 0;
  return new Service({ socket, watchdogMs, log });
}

export class Service implements Disposable {
  readonly #socket: string;
  readonly #watchdogMs: number;
  readonly #log: Log;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: { socket: string; watchdogMs: number; log: Log }) {
    this.#socket = options.socket;
    this.#watchdogMs = options.watchdogMs;
    this.#log = options.log;
  }

  /** Until ready(): what was left by an earlier daemon may be much. A thread that hangs does not ask. */
  recovering(): void {
    const end = performance.now() + recoverMsMax;
    const extend = () => {
      if (performance.now() > end) return this[Symbol.dispose]();
      this.#tell("STATUS=taking over what runs", `EXTEND_TIMEOUT_USEC=${extendByMs * 1000}`);
    };
    extend();
    this.#timer = setInterval(extend, extendEveryMs);
  }

  /** @param host of our own, "unix:///…": the watchdog is told only while a call there is answered. */
  ready(host: string): void {
    this[Symbol.dispose]();
    this.#tell("READY=1", "STATUS=serving CRI");
    if (this.#watchdogMs === 0 || this.#socket === "") return;
    const everyMs = this.#watchdogMs / watchdogShare;
    let asking = false;
    const ask = async () => {
      if (asking) return;
      asking = true;
      try {
        await answers(host, everyMs);
        this.#tell("WATCHDOG=1");
      } catch (error) {
        const fields = { host, error: messageOf(error) };
        this.#log.error("the own socket does not answer, so the watchdog is not told", fields);
      } finally {
        asking = false;
      }
    };
    this.#timer = setInterval(() => {
      ask().catch(logFailure(this.#log, "the watchdog is not told"));
    }, everyMs);
  }

  ending(): void {
    this[Symbol.dispose]();
    this.#tell("STOPPING=1");
  }

  #tell(...lines: string[]): void {
    if (this.#socket === "") return;
    try {
      sendDatagram(this.#socket, lines.join("\n"));
    } catch (error) {
      this.#log.warn("the service manager was not told", {
        text: lines.join(" "),
        error: messageOf(error),
      });
    }
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }
}

/** By a connection of its own: one that is there tells nothing of the socket. */
async function answers(host: string, timeoutMs: number): Promise<void> {
  const client = connect(host);
  try {
    await client.Version({}, { timeoutMs });
  } finally {
    client.close();
  }
}
