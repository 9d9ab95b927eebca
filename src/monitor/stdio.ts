// A container's standard streams: FIFOs that outlive the monitor, or a terminal.
//
// Output FIFOs are open both ways in the container, so that it gets no SIGPIPE while nobody reads;
// the end of output is "exited and drained", never an end of file.
import {
  chownSync,
  closeSync,
  constants,
  existsSync,
  openSync,
  readdirSync,
  readlinkSync,
  rmSync,
} from "node:fs";
import { mkdir } from "node:fs/promises";
import { basename, join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { duplicate, setPipeSize } from "../sys/descriptor.ts";
import { mkfifo, setSelinuxLabel } from "../sys/path.ts";
import { Mailbox } from "../sys/unix_socket.ts";
import type { LogFds } from "./container_log.ts";
import type { StartRequest } from "./protocol.ts";
import type { LogWorkers } from "./worker_client.ts";

export type Stdio = {
  /** What the runtime's create gets as stdin, stdout and stderr. */
  child: [number, number, number];
  /** Further arguments of create. */
  args: string[];
  /** The runtime's create is done, well or not: what only that needed is closed. */
  created(): Promise<void>;
  /** The terminal, to be passed on; the log worker has a descriptor of its own. */
  terminalFd?: number;
  /** What the container reads ends, for good: also for a later monitor there is no stdin then. */
  closeStdin(): void;
  /** The container's end, after its log is drained. */
  close(): void;
};

const noStdio: Stdio = {
  child: [-1, -1, -1],
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
  const kept = new Map<string, number>();
  const fds = { stdout: -1, stderr: -1, terminal: false };
  for (const name of fifoNames(request)) {
    const path = fifoPath(request, name);
    if (name === "stdin" && !existsSync(path)) continue; // closed for good
    try {
      const fd = openSync(path, constants.O_RDWR);
      kept.set(name, fd);
      setPipeSize(fd, fifoBytes);
      const reading = constants.O_RDONLY | constants.O_NONBLOCK;
      if (name === "stdout" || name === "stderr") fds[name] = openSync(path, reading);
    } catch (error) {
      const fields = { container: request.id, stream: name, error: messageOf(error) };
      log.error("a stream is lost, and what is written to it", fields);
    }
  }
  workers.resume({ id: request.id, path: request.logPath, ...fds });
  return { ...noStdio, ...keeping(request, kept) };
}

/** Where a FIFO can be opened: by its name, or, where that is gone, as the container has it open. */
function fifoPath({ stdio, pid }: { stdio: string; pid: number }, name: string): string {
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
  kept: Map<string, number>,
): Pick<Stdio, "closeStdin" | "close"> {
  return {
    closeStdin: () => {
      rmSync(join(stdio, "stdin"), { force: true });
      const fd = kept.get("stdin");
      if (fd !== undefined) closeSync(fd);
      kept.delete("stdin");
    },
    close: () => kept.forEach((fd) => closeSync(fd)),
  };
}

/** A terminal that an earlier monitor had, or the daemon kept. */
export function resumeTerminal(
  stdio: Stdio,
  terminalFd: number,
  { request, workers }: { request: StartRequest; workers: LogWorkers },
): void {
  stdio.terminalFd = terminalFd;
  stdio.close = () => closeSync(terminalFd);
  const fds = { stdout: duplicate(terminalFd), stderr: -1, terminal: true };
  workers.resume({ id: request.id, path: request.logPath, ...fds });
}

function fifoNames(request: StartRequest): string[] {
  return ["stdout", "stderr", ...(request.stdin ? ["stdin"] : [])];
}

async function openFifos(request: StartRequest, workers: LogWorkers): Promise<Stdio> {
  const opened: number[] = [];
  const open = (path: string, flags: number) => {
    const fd = openSync(path, flags);
    opened.push(fd);
    return fd;
  };
  const at = (name: string) => join(request.stdio, name);
  try {
    const kept = new Map(
      fifoNames(request).map((name) => [name, open(at(name), constants.O_RDWR)] as const),
    );
    for (const fd of kept.values()) setPipeSize(fd, fifoBytes);
    // Does not wait for a writing end: one is kept.
    const stdin = open(request.stdin ? at("stdin") : "/dev/null", constants.O_RDONLY);
    const reading = constants.O_RDONLY | constants.O_NONBLOCK;
    const [stdout, stderr] = [openSync(at("stdout"), reading), openSync(at("stderr"), reading)];
    await startLog(request, workers, { stdout, stderr, terminal: false });
    return {
      child: [stdin, kept.get("stdout")!, kept.get("stderr")!],
      args: [],
      created: () => Promise.resolve(closeSync(stdin)),
      ...keeping(request, kept),
    };
  } catch (error) {
    for (const fd of opened) closeSync(fd);
    throw error;
  }
}

function openTerminal(request: StartRequest, workers: LogWorkers, folder: string): Stdio {
  const mailbox = new Mailbox(folder);
  const none = openSync("/dev/null", constants.O_RDWR);
  const stdio: Stdio = {
    ...noStdio,
    child: [none, none, none],
    args: ["--console-socket", mailbox.path],
    created: async () => {
      try {
        // Sent by the runtime before its create ended, so it is there.
        const terminalFd = mailbox.take();
        stdio.terminalFd = terminalFd;
        stdio.close = () => closeSync(terminalFd);
        const stdout = duplicate(terminalFd);
        await startLog(request, workers, { stdout, stderr: -1, terminal: true });
      } finally {
        closeSync(none);
        mailbox[Symbol.dispose]();
      }
    },
  };
  return stdio;
}

async function startLog(request: StartRequest, workers: LogWorkers, fds: LogFds): Promise<void> {
  const { id, logPath } = request;
  try {
    await workers.log({ id, path: logPath, ...fds });
  } catch (cause) {
    const message = `cannot write the log of container ${id} to ${logPath}: ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}
