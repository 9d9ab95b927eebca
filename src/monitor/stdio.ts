// Opens a container's standard streams: FIFOs that outlive the monitor, or a terminal.
//
// Output FIFOs are open both ways in the container, so that it gets no SIGPIPE while nobody reads; the output
// ends when the container has exited and the FIFO is drained, never with an end of file. A shim copies a
// container's streams from and to these FIFOs, and holds its terminal: that output ends when the container has
// exited and the shim has closed the FIFO.
import { chownSync, constants, existsSync, readdirSync, readlinkSync, rmSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { basename, join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { shrinkLeft } from "../sys/large_pipes.ts";
import { mkfifo, setSelinuxLabel } from "../sys/path.ts";
import { DescriptorInbox } from "../sys/unix_socket.ts";
import type { LogStreams } from "../monitor_log/container_log.ts";
import type { StartRequest } from "./protocol.ts";
import type { ChildStdio } from "./spawner.ts";
import type { LogWorkers } from "./log_workers.ts";

export type Stdio = {
  /** Streams of the runtime's create; absent where the container runs already. */
  child?: ChildStdio;
  /** Additional arguments of create. */
  args: string[];
  /** Closes the descriptors that only create needed, after its success or failure; takes the terminal. */
  created(): Promise<void>;
  /** The terminal, to be lent and passed on in an upgrade; the log worker has its own descriptor. */
  terminal?: Descriptor;
  /** Ends the container's stdin for good: a later monitor does not open it either. */
  closeStdin(): void;
  /** Called at the container's exit, before its log is drained. */
  exited(): void;
  /** Called after the container's exit, when its log is drained. */
  close(): void;
};

const noStdio: Stdio = {
  args: [],
  created: () => Promise.resolve(),
  closeStdin: () => {},
  exited: () => {},
  close: () => {},
};

/** folder: the monitor's. @throws CriError FAILED_PRECONDITION when the log cannot be written. */
export async function openStdio(
  request: StartRequest,
  { workers, folder }: { workers: LogWorkers; folder: string },
): Promise<Stdio> {
  await mkdir(request.stdio, { recursive: true, mode: 0o700 });
  if (hasTerminal(request)) return openTerminal(request, workers, folder);
  for (const name of fifoNames(request)) {
    const path = join(request.stdio, name);
    rmSync(path, { force: true });
    mkfifo(path, 0o600);
    // A runtime in a user namespace cannot change the owner of files that the node's root owns.
    if (request.owner !== undefined) chownSync(path, request.owner.uid, request.owner.gid);
    if (request.label !== undefined) setSelinuxLabel(path, request.label);
  }
  return openFifos(request, workers);
}

/**
 * Opens the streams of a container that runs already; its terminal, which cannot be opened, is received
 * (resumeTerminal). The container goes on without a stream that cannot be opened.
 */
export function reopenStdio(
  request: StartRequest & { pid: number },
  workers: LogWorkers,
  log: Log,
): Stdio {
  if (hasTerminal(request)) return { ...noStdio };
  const kept = new Map<string, Descriptor>();
  const streams: LogStreams = { terminal: false };
  for (const name of fifoNames(request)) {
    const path = fifoPath(request, name);
    if (name === "stdin" && !existsSync(path)) continue; // closed for good
    try {
      const fifo = Descriptor.open(path, constants.O_RDWR);
      kept.set(name, fifo);
      shrinkLeft(fifo);
      if (name !== "stdin") streams[name] = Descriptor.open(path, reading).release();
    } catch (error) {
      const fields = { container: request.id, stream: name, error: messageOf(error) };
      log.error("opening a stream failed, its output is lost", fields);
    }
  }
  workers.resume({ ...logOf(request), ...streams });
  return { ...noStdio, ...keeping(request, kept) };
}

/** Returns a FIFO's path: its name, or, where that was removed, the container's open descriptor in /proc. */
function fifoPath({ stdio, pid }: { stdio: string; pid: number }, name: StreamName): string {
  const path = join(stdio, name);
  // stdin alone is removed only by closeStdin().
  if (existsSync(path) || (name === "stdin" && existsSync(stdio))) return path;
  const folder = `/proc/${pid}/fd`;
  const deleted = `/${basename(stdio)}/${name} (deleted)`;
  for (const fd of existsSync(folder) ? readdirSync(folder) : []) {
    if (linkOf(join(folder, fd)).endsWith(deleted)) return join(folder, fd);
  }
  return path;
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return ""; // closed meanwhile
  }
}

/** kept: this process's end of each FIFO. */
function keeping(
  { stdio, runtime }: StartRequest,
  kept: Map<string, Descriptor>,
): Pick<Stdio, "closeStdin" | "exited" | "close"> {
  const close = () => kept.forEach((fifo) => fifo.close());
  return {
    closeStdin: () => {
      rmSync(join(stdio, "stdin"), { force: true });
      kept.get("stdin")?.close();
    },
    // From here on, the shim has the only writing ends.
    exited: runtime.shim === undefined ? () => {} : close,
    close,
  };
}

/** Takes a terminal that an earlier monitor passed on, or that the daemon returned. */
export function resumeTerminal(
  stdio: Stdio,
  terminal: Descriptor,
  { request, workers }: { request: StartRequest; workers: LogWorkers },
): void {
  keepTerminal(stdio, terminal);
  const stdout = terminal.duplicate().release();
  workers.resume({ ...logOf(request), stdout, terminal: true });
}

function keepTerminal(stdio: Stdio, terminal: Descriptor): void {
  stdio.terminal = terminal;
  stdio.close = () => terminal.close();
}

const reading = constants.O_RDONLY | constants.O_NONBLOCK;
type StreamName = "stdin" | "stdout" | "stderr";

/** True where the monitor holds the container's terminal; that of a shim's container is held by the shim. */
export function hasTerminal({ terminal, runtime }: StartRequest): boolean {
  return terminal && runtime.shim === undefined;
}

function fifoNames({ terminal, stdin }: StartRequest): StreamName[] {
  const names: StreamName[] = terminal ? ["stdout"] : ["stdout", "stderr"];
  return stdin ? [...names, "stdin"] : names;
}

async function openFifos(request: StartRequest, workers: LogWorkers): Promise<Stdio> {
  using opened = new DisposableStack();
  const open = (path: string, flags: number) => opened.use(Descriptor.open(path, flags));
  const at = (name: StreamName) => join(request.stdio, name);
  const names = fifoNames(request);
  const kept = new Map(names.map((name) => [name, open(at(name), constants.O_RDWR)] as const));
  const readers = names
    .filter((name) => name !== "stdin")
    .map((name) => [name, open(at(name), reading)] as const);
  // Does not block: this process keeps a writing end.
  const stdin = open(request.stdin ? at("stdin") : "/dev/null", constants.O_RDONLY);
  const streams: LogStreams = { terminal: false };
  for (const [name, reader] of readers) streams[name] = reader.release();
  await startLog(request, workers, streams);
  opened.move();
  const outputs = [kept.get("stdout")!, kept.get("stderr") ?? kept.get("stdout")!] as const;
  return {
    child: [stdin, ...outputs],
    args: [],
    created: () => Promise.resolve(stdin.close()),
    ...keeping(request, kept),
  };
}

function openTerminal(request: StartRequest, workers: LogWorkers, folder: string): Stdio {
  const mailbox = new DescriptorInbox(folder);
  const none = Descriptor.open("/dev/null", constants.O_RDWR);
  const stdio: Stdio = {
    ...noStdio,
    child: [none, none, none],
    args: ["--console-socket", mailbox.path],
    created: async () => {
      try {
        // The runtime has sent it before its create ended.
        const terminal = mailbox.take();
        keepTerminal(stdio, terminal);
        const stdout = terminal.duplicate().release();
        await startLog(request, workers, { stdout, terminal: true });
      } finally {
        none.close();
        mailbox[Symbol.dispose]();
      }
    },
  };
  return stdio;
}

function logOf(request: StartRequest) {
  const { id, logPath: path, logLineBytes: lineBytes, terminal: hasReturns } = request;
  const { logOnError: onError, logDropNote: hasNotes } = request;
  return { id, path, lineBytes, hasReturns, onError, hasNotes };
}

async function startLog(
  request: StartRequest,
  workers: LogWorkers,
  streams: LogStreams,
): Promise<void> {
  const { id, logPath } = request;
  try {
    await workers.log({ ...logOf(request), ...streams });
  } catch (cause) {
    const message = `cannot write the log of container ${id} to ${logPath}: ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}
