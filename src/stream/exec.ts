// Serves Exec: runs a command in a container, with its streams over FIFOs between it and this process, or
// over a terminal that the runtime sends. The bytes bypass the monitor. When this process ends, the command's
// streams end, and the monitor, its parent, kills it.
import { randomBytes } from "node:crypto";
import { codeOf, messageOf } from "../base/errors.ts";
import type { MonitorClient } from "../monitor_client/client.ts";
import type { ExecProcess } from "../monitor/protocol.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { setTerminalSize } from "../sys/terminal.ts";
import { DescriptorInbox } from "../sys/unix_socket.ts";
import type { Channels, Outcome, WantedStreams } from "./channels.ts";
import { copyOutput } from "./copy_output.ts";
import { Fifos } from "./fifos.ts";

export type ExecSession = {
  containerId: string;
  /** OCI process as JSON. */
  process: string;
  /** SELinux label of the streams, if the container has one. */
  label?: string;
  wanted: WantedStreams;
};

export type StreamParts = { monitor: MonitorClient; poller: Poller; folder: string };

/** Runs the command to its end; kills it if the client disconnects or its streams fail. */
export async function serveExec(
  parts: StreamParts,
  session: ExecSession,
  channels: Channels,
  hangup: AbortSignal,
): Promise<Outcome> {
  const key = randomBytes(16).toString("hex");
  let hasExited = false;
  const cancel = () => {
    // A dead monitor's execs are killed anyway.
    if (!hasExited) parts.monitor.call("cancelExec", { key }).catch(() => {});
  };
  hangup.addEventListener("abort", cancel, { once: true });
  try {
    using io = session.wanted.tty ? new TerminalIo(parts) : new FifoIo(parts, session);
    const { containerId: id, process } = session;
    const { result } = await parts.monitor.call("startExec", { id, key, process, ...io.request });
    if (hangup.aborted) cancel(); // the first cancel may have preceded the exec
    const exec = { id, key, ...result };
    const exited = waitExec(parts.monitor, exec).finally(() => (hasExited = true));
    exited.catch(() => {}); // reported by its other awaiters
    io.started();
    if (session.wanted.tty) resizeTerminal(io.input, channels).catch(() => {}); // the terminal is closed
    return await copyStreams(io, channels, exited);
  } catch (error) {
    return { error: messageOf(error) };
  } finally {
    hangup.removeEventListener("abort", cancel);
    cancel();
  }
}

async function copyStreams(io: Io, channels: Channels, exited: Promise<number>): Promise<Outcome> {
  feed(io, channels.stdin).catch(() => {}); // EPIPE: the command closed its stdin
  const copies = io.outputs.map(({ name, stream }) =>
    copyOutput(stream, (bytes) => channels.write(name, bytes), exited).finally(() =>
      // The command must not block on a client that has disconnected.
      stream.close(),
    ),
  );
  const [exitCode] = await Promise.all([exited, ...copies]);
  return { exitCode };
}

/** Returns the exit code. @throws if the monitor died; its successor then kills the process. */
async function waitExec(
  monitor: MonitorClient,
  exec: { id: string; key: string } & ExecProcess,
): Promise<number> {
  const { id, key, pid, pidStartTime } = exec;
  try {
    const { result } = await monitor.call("waitExec", { key });
    return result.exitCode;
  } catch (error) {
    // The monitor, its parent, died: the next one kills the orphan.
    if (codeOf(error) === "UNAVAILABLE") await monitor.call("endExec", { id, pid, pidStartTime });
    throw error;
  }
}

/** Copies the client's stdin; a command that closes its stdin ends only this copy. */
async function feed(io: Io, stdin: AsyncIterable<Buffer>): Promise<void> {
  try {
    for await (const chunk of stdin) await io.input?.send(chunk);
  } finally {
    io.endInput();
  }
}

/** Sets the terminal to the client's sizes as they change. */
export async function resizeTerminal(
  terminal: ByteStream | undefined,
  { resizes }: Channels,
): Promise<void> {
  for await (const size of resizes) {
    if (terminal?.closed === false) setTerminalSize(terminal.descriptor, size);
  }
}

type Output = { name: "stdout" | "stderr"; stream: ByteStream };
type Request = { stdin: string; stdout: string; stderr: string; console: string };

interface Io extends Disposable {
  readonly request: Request;
  readonly outputs: Output[];
  readonly input: ByteStream | undefined;
  started(): void;
  endInput(): void;
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

  [Symbol.dispose](): void {
    this.#fifos[Symbol.dispose]();
  }
}

class TerminalIo implements Io {
  readonly request: Request;
  readonly outputs: Output[] = [];
  input: ByteStream | undefined;
  readonly #mailbox: DescriptorInbox;
  readonly #poller: Poller;

  constructor({ poller, folder }: StreamParts) {
    this.#mailbox = new DescriptorInbox(folder);
    this.#poller = poller;
    this.request = { stdin: "", stdout: "", stderr: "", console: this.#mailbox.path };
  }

  /** The runtime has sent the terminal by now. */
  started(): void {
    this.input = new ByteStream(this.#mailbox.take(), this.#poller);
    this.outputs.push({ name: "stdout", stream: this.input });
  }

  /** Does nothing: closing the terminal would hang up the command. */
  endInput(): void {}

  [Symbol.dispose](): void {
    this.#mailbox[Symbol.dispose]();
    this.input?.close();
  }
}
