// Exec: a command in a running container, its streams over FIFOs that this process reads and writes, or
// over a terminal that the runtime sends it. So bytes take no way through the monitor, and when this
// process ends the command meets the end of its streams; the monitor, its parent, kills it then.
import { randomBytes } from "node:crypto";
import { codeOf, messageOf } from "../base/errors.ts";
import type { MonitorClient } from "../monitor_client/client.ts";
import type { ExecProcess } from "../monitor/protocol.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { setTerminalSize } from "../sys/terminal.ts";
import { Mailbox } from "../sys/unix_socket.ts";
import type { Channels, Outcome, Wanted } from "./channels.ts";
import { copyOutput } from "./copy.ts";
import { Fifos } from "./fifo.ts";

export type ExecSession = {
  containerId: string;
  /** OCI process as JSON. */
  process: string;
  /** SELinux's of the streams, where the container has labels. */
  label?: string;
  wanted: Wanted;
};

export type StreamParts = { monitor: MonitorClient; poller: Poller; folder: string };

/** Runs the command to its end; it is killed when the client goes, or its streams fail. */
export async function serveExec(
  parts: StreamParts,
  session: ExecSession,
  channels: Channels,
  gone: AbortSignal,
): Promise<Outcome> {
  const key = randomBytes(16).toString("hex");
  let over = false;
  const cancel = () => {
    if (!over) parts.monitor.call("cancelExec", { key }).catch(() => {}); // without a monitor it is ended anyway
  };
  gone.addEventListener("abort", cancel, { once: true });
  try {
    using io = session.wanted.tty ? new TerminalIo(parts) : new FifoIo(parts, session);
    const { containerId: id, process } = session;
    const { result } = await parts.monitor.call("startExec", { id, key, process, ...io.request });
    if (gone.aborted) cancel(); // it may have come before the monitor knew of the exec
    const exited = waitExec(parts.monitor, { id, key, ...result }).finally(() => (over = true));
    exited.catch(() => {}); // told to who waits
    io.started();
    return await attend(io, channels, exited);
  } catch (error) {
    return { error: messageOf(error) };
  } finally {
    gone.removeEventListener("abort", cancel);
    cancel();
  }
}

async function attend(io: Io, channels: Channels, exited: Promise<number>): Promise<Outcome> {
  feed(io, channels.stdin).catch(() => {}); // EPIPE: the command reads no more
  resize(io, channels).catch(() => {}); // the terminal has gone, and the session with it
  const copies = io.outputs.map(({ name, stream }) =>
    copyOutput(stream, (bytes) => channels.write(name, bytes), exited).finally(() =>
      // A client that has gone reads no more, but its command must not wait for that.
      stream.close(),
    ),
  );
  const [exitCode] = await Promise.all([exited, ...copies]);
  return { exitCode };
}

/** @throws when it cannot be known; the process is ended then. */
async function waitExec(
  monitor: MonitorClient,
  exec: { id: string; key: string } & ExecProcess,
): Promise<number> {
  const { id, key, pid, pidStartTime } = exec;
  try {
    const { result } = await monitor.call("waitExec", { key });
    return result.exitCode;
  } catch (error) {
    // Its parent, the monitor, was killed: the next one ends what it left.
    if (codeOf(error) === "UNAVAILABLE") await monitor.call("endExec", { id, pid, pidStartTime });
    throw error;
  }
}

/** What the client types; a command that does not want it ends that, not the session. */
async function feed(io: Io, stdin: AsyncIterable<Buffer>): Promise<void> {
  try {
    for await (const chunk of stdin) await io.input?.send(chunk);
  } finally {
    io.endInput();
  }
}

async function resize(io: Io, { resizes }: Channels): Promise<void> {
  for await (const size of resizes) io.resize(size.columns, size.rows);
}

type Output = { name: "stdout" | "stderr"; stream: ByteStream };
type Request = { stdin: string; stdout: string; stderr: string; console: string };

interface Io extends Disposable {
  readonly request: Request;
  readonly outputs: Output[];
  readonly input: ByteStream | undefined;
  started(): void;
  endInput(): void;
  resize(columns: number, rows: number): void;
}

class FifoIo implements Io {
  readonly request: Request;
  readonly outputs: Output[] = [];
  readonly input: ByteStream | undefined;
  readonly #fifos: Fifos;

  constructor(parts: StreamParts, { wanted, label }: ExecSession) {
    const names = (["stdin", "stdout", "stderr"] as const).filter((name) => wanted[name]);
    this.#fifos = new Fifos(names, { ...parts, label });
    this.request = { ...this.#fifos.paths, console: "" };
    const { stdin, ...outputs } = this.#fifos.streams;
    this.input = stdin;
    for (const name of ["stdout", "stderr"] as const) {
      if (outputs[name] !== undefined) this.outputs.push({ name, stream: outputs[name] });
    }
  }

  started(): void {
    this.#fifos.connected();
  }

  endInput(): void {
    this.input?.close();
  }

  resize(): void {}

  [Symbol.dispose](): void {
    this.#fifos[Symbol.dispose]();
  }
}

class TerminalIo implements Io {
  readonly request: Request;
  readonly outputs: Output[] = [];
  input: ByteStream | undefined;
  readonly #mailbox: Mailbox;
  readonly #poller: Poller;

  constructor({ poller, folder }: StreamParts) {
    this.#mailbox = new Mailbox(folder);
    this.#poller = poller;
    this.request = { stdin: "", stdout: "", stderr: "", console: this.#mailbox.path };
  }

  /** The runtime has sent it before it ended. */
  started(): void {
    this.input = new ByteStream(this.#mailbox.take(), this.#poller);
    this.outputs.push({ name: "stdout", stream: this.input });
  }

  /** Nothing: as with a person's terminal, that would be a hang-up. */
  endInput(): void {}

  resize(columns: number, rows: number): void {
    if (this.input?.closed === false) setTerminalSize(this.input.descriptor, { columns, rows });
  }

  [Symbol.dispose](): void {
    this.#mailbox[Symbol.dispose]();
    this.input?.close();
  }
}
