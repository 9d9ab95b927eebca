// A container's standard streams: FIFOs that outlive the monitor, or a terminal.
//
// Output FIFOs are open both ways in the container, so that it gets no SIGPIPE while nobody reads;
// the end of output is "exited and drained", never an end of file.
import { chownSync, constants, existsSync, readdirSync, readlinkSync, rmSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { basename, join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { Descriptor, setPipeSize } from "../sys/descriptor.ts";
import { mkfifo, setSelinuxLabel } from "../sys/path.ts";
import { Mailbox } from "../sys/unix_socket.ts";
import type { LogStreams } from "../monitor_log/container_log.ts";
import type { StartRequest } from "./protocol.ts";
import type { ChildStdio } from "./spawner.ts";
import type { LogWorkers } from "./log_workers.ts";

export type Stdio = {
  /** What the runtime's create gets; absent where the container runs already. */
  child?: ChildStdio;
  /** Further arguments of create. */
  args: string[];
  /** The runtime's create is done, well or not: what only that needed is closed. */
  created(): Promise<void>;
  /** The terminal, to be passed on; the log worker has a descriptor of its own. */
  terminal?: Descriptor;
  /** What the container reads ends, for good: also for a later monitor there is no stdin then. */
  closeStdin(): void;
  /** The container's end, after its log is drained. */
  close(): void;
};

const noStdio: Stdio = {
  args: [],
  created: () => Promise.resolve(),
  closeStdin: () => {},
  close: () => {},
};

/** FIFO capacity: what a container may write while nobody reads. */
const fifoBytes = 1 << 20;

/** folder: the monitor's own. @throws CriError FAILED_PRECONDITION when the log cannot be written. */
export async function openStdio(
  request: StartRequest,
  { workers, folder }: { workers: LogWorkers; folder: string },
): Promise<Stdio> {
  await mkdir(request.stdio, { recursive: true, mode: 0o700 });
  if (request.terminal) return openTerminal(request, workers, folder);
  for (const name of fifoNames(request)) {
    const path = join(request.stdio, name);
    rmSync(path, { force: true });
    mkfifo(path, 0o600);
    // What the node's root owns, a runtime in a user namespace cannot give to the program's user.
    if (request.owner !== undefined) chownSync(path, request.owner.uid, request.owner.gid);
    if (request.label !== undefined) setSelinuxLabel(path, request.label);
  }
  return openFifos(request, workers);
}

/**
 * Those of a container that runs already; its terminal, which nobody can open, comes by itself. The rest
 * goes on without what cannot be opened, also not where the container has it open.
 */
export function reopenStdio(
  request: StartRequest & { pid: number },
  workers: LogWorkers,
  log: Log,
): Stdio {
  if (request.terminal) return { ...noStdio };
  const kept = new Map<string, Descriptor>();
  const streams: LogStreams = { terminal: false };
  for (const name of fifoNames(request)) {
    const path = fifoPath(request, name);
    if (name === "stdin" && !existsSync(path)) continue; // closed for good
    try {
      const fifo = Descriptor.open(path, constants.O_RDWR);
      kept.set(name, fifo);
      setPipeSize(fifo, fifoBytes);
      if (name !== "stdin") streams[name] = Descriptor.open(path, reading).release();
    } catch (error) {
      const fields = { container: request.id, stream: name, error: messageOf(error) };
      log.error("a stream is lost, and what is written to it", fields);
    }
  }
  workers.resume({ id: request.id, path: request.logPath, ...streams });
  return { ...noStdio, ...keeping(request, kept) };
}

/** Where a FIFO can be opened: by its name, or, where that is gone, as the container has it open. */
function fifoPath({ stdio, pid }: { stdio: string; pid: number }, name: StreamName): string {
  const path = join(stdio, name);
  // Only stdin is ever removed by itself, and that for good.
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

/** kept: an end of each FIFO that this process keeps open. */
function keeping(
  { stdio }: StartRequest,
  kept: Map<string, Descriptor>,
): Pick<Stdio, "closeStdin" | "close"> {
  return {
    closeStdin: () => {
      rmSync(join(stdio, "stdin"), { force: true });
      kept.get("stdin")?.close();
    },
    close: () => kept.forEach((fifo) => fifo.close()),
  };
}

/** A terminal that an earlier monitor had, or the daemon kept. */
export function resumeTerminal(
  stdio: Stdio,
  terminal: Descriptor,
  { request, workers }: { request: StartRequest; workers: LogWorkers },
): void {
  keepTerminal(stdio, terminal);
  const stdout = terminal.duplicate().release();
  workers.resume({ id: request.id, path: request.logPath, stdout, terminal: true });
}

function keepTerminal(stdio: Stdio, terminal: Descriptor): void {
  stdio.terminal = terminal;
  stdio.close = () => terminal.close();
}

const reading = constants.O_RDONLY | constants.O_NONBLOCK;
type StreamName = "stdin" | "stdout" | "stderr";

function fifoNames(request: StartRequest): StreamName[] {
  return ["stdout", "stderr", ...(request.stdin ? (["stdin"] as const) : [])];
}

async function openFifos(request: StartRequest, workers: LogWorkers): Promise<Stdio> {
  using opened = new DisposableStack();
  const open = (path: string, flags: number) => opened.use(Descriptor.open(path, flags));
  const at = (name: StreamName) => join(request.stdio, name);
  const kept = new Map(
    fifoNames(request).map((name) => [name, open(at(name), constants.O_RDWR)] as const),
  );
  for (const fifo of kept.values()) setPipeSize(fifo, fifoBytes);
  // Does not wait for a writing end: one is kept.
  const stdin = open(request.stdin ? at("stdin") : "/dev/null", constants.O_RDONLY);
  const [stdout, stderr] = [open(at("stdout"), reading), open(at("stderr"), reading)];
  const streams = { stdout: stdout.release(), stderr: stderr.release(), terminal: false };
  await startLog(request, workers, streams);
  opened.move();
  return {
    child: [stdin, kept.get("stdout")!, kept.get("stderr")!],
    args: [],
    created: () => Promise.resolve(stdin.close()),
    ...keeping(request, kept),
  };
}

function openTerminal(request: StartRequest, workers: LogWorkers, folder: string): Stdio {
  const mailbox = new Mailbox(folder);
  const none = Descriptor.open("/dev/null", constants.O_RDWR);
  const stdio: Stdio = {
    ...noStdio,
    child: [none, none, none],
    args: ["--console-socket", mailbox.path],
    created: async () => {
      try {
        // Sent by the runtime before its create ended, so it is there.
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

async function startLog(
  request: StartRequest,
  workers: LogWorkers,
  streams: LogStreams,
): Promise<void> {
  const { id, logPath } = request;
  try {
    await workers.log({ id, path: logPath, ...streams });
  } catch (cause) {
    const message = `cannot write the log of container ${id} to ${logPath}: ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}
