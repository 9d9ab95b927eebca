// Connects this process to a command's streams: FIFOs, a terminal that the runtime sends, or a shim's terminal,
// whose input and output pass through FIFOs.
import type { MonitorClient } from "../monitor_client/client.ts";
import type { StartExecRequest } from "../monitor/protocol.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { DescriptorInbox } from "../sys/unix_socket.ts";
import type { Size, WantedStreams } from "./channels.ts";
import { Fifos } from "./fifos.ts";
import { resizeByShim, resizeTerminal, type Resize } from "./resize.ts";

export type StreamParts = { monitor: MonitorClient; poller: Poller; folder: string };
export type ExecStreams = {
  containerId: string;
  /** The exec's, for the monitor. */
  key: string;
  /** A shim runs the container: it copies the streams, and holds the terminal. */
  byShim: boolean;
  wanted: WantedStreams;
  /** SELinux label of the streams, if the container has one. */
  label?: string | undefined;
};
type Request = Pick<StartExecRequest, "stdin" | "stdout" | "stderr" | "console" | "terminal">;
type Output = { name: "stdout" | "stderr"; stream: ByteStream };

export interface ExecIo extends Disposable {
  readonly request: Request;
  readonly outputs: Output[];
  readonly input: ByteStream | undefined;
  /** Call when the command runs, before the streams are used. */
  started(): void;
  /** Waits until the command's side reads stdin: earlier input may be lost. */
  inputRead(): Promise<void>;
  /** The client sends no more input. */
  endInput(): Promise<void>;
  /** Sets the size of a terminal. */
  resize(size: Size): Promise<void>;
}

export function openExecIo(parts: StreamParts, streams: ExecStreams): ExecIo {
  if (streams.byShim) return new ShimIo(parts, streams);
  return streams.wanted.tty ? new TerminalIo(parts) : new FifoIo(parts, streams);
}

class FifoIo implements ExecIo {
  readonly request: Request;
  readonly outputs: Output[] = [];
  readonly input: ByteStream | undefined;
  readonly resize: Resize = () => Promise.resolve();
  protected readonly fifos: Fifos;

  constructor(parts: StreamParts, { wanted, label }: ExecStreams) {
    const names = (["stdin", "stdout", "stderr"] as const).filter((name) => wanted[name]);
    this.fifos = new Fifos(names, { ...parts, label });
    this.request = { ...this.fifos.paths, console: "" };
    const { stdin, ...outputs } = this.fifos.streams;
    this.input = stdin;
    for (const name of ["stdout", "stderr"] as const) {
      if (outputs[name] !== undefined) this.outputs.push({ name, stream: outputs[name] });
    }
  }

  started(): void {
    this.fifos.connected();
  }

  async inputRead(): Promise<void> {}

  async endInput(): Promise<void> {
    this.input?.close();
  }

  [Symbol.dispose](): void {
    this.fifos[Symbol.dispose]();
  }
}

class ShimIo extends FifoIo {
  override readonly request: Request;
  override readonly resize: Resize;
  readonly #monitor: MonitorClient;
  readonly #exec: ExecStreams;

  constructor(parts: StreamParts, exec: ExecStreams) {
    super(parts, exec);
    const { containerId: id, key, wanted } = exec;
    this.request = { ...this.fifos.paths, console: "", terminal: wanted.tty };
    this.resize = resizeByShim(parts.monitor, { id, key });
    this.#monitor = parts.monitor;
    this.#exec = exec;
  }

  override inputRead(): Promise<void> {
    return this.fifos.stdinRead();
  }

  /** A terminal stays open: closing it would hang up the command. */
  override async endInput(): Promise<void> {
    const { containerId: id, key, wanted } = this.#exec;
    if (wanted.tty) return;
    await super.endInput();
    // The shim has a writing end of its own.
    if (wanted.stdin) await this.#monitor.call("closeStdin", { id, key });
  }
}

class TerminalIo implements ExecIo {
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

  async inputRead(): Promise<void> {}

  /** Does nothing: closing the terminal would hang up the command. */
  async endInput(): Promise<void> {}

  async resize(size: Size): Promise<void> {
    if (this.input !== undefined) await resizeTerminal(this.input)(size);
  }

  [Symbol.dispose](): void {
    this.#mailbox[Symbol.dispose]();
    this.input?.close();
  }
}
