// The monitor's worker thread: reads the output of all containers and execs as it comes. It waits in
// epoll, so a busy log never delays the monitor's answers. Nothing in it waits for one container:
// what cannot go on now (a full disk, an exec whose child holds its output) is a step of a later turn.
import { closeSync, constants, mkdirSync, openSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { parentPort, workerData } from "node:worker_threads";
import { messageOf } from "../base/errors.ts";
import { drainEventfd, Epoll, readNow } from "../sys/descriptor.ts";
import { LogLines, LogOutput } from "./log_lines.ts";

type LogRequest = { op: "log"; id: string; path: string; stdout: number; stderr: number };
type CaptureRequest = {
  op: "capture";
  id: string;
  stdout: number;
  stderr: number;
  maxBytes: number;
};
/** `end`: the container has exited. `collect`: the exec has exited. */
export type WorkerRequest = { seq: number } & (
  | LogRequest
  | CaptureRequest
  | { op: "reopen" | "end" | "collect"; id: string }
);
export type WorkerReply = {
  seq: number;
  error?: string;
  lostBytes?: number;
  stdout?: Uint8Array;
  stderr?: Uint8Array;
};

/** Something to read; `read` says whether there may be more, is nothing now, or never will be. */
type Source = {
  fd: number;
  read: () => "more" | "empty" | "end";
  finish: () => void;
  open: boolean;
};
/** A container's log. `unwritten` is what the disk refused: while there is some, nothing is read. */
type Log = {
  path: string;
  fd: number;
  sources: Source[];
  unwritten: Buffer[];
  end?: { seq: number; deadline: number };
};
type Capture = {
  sources: Source[];
  kept: { stdout: Buffer[]; stderr: Buffer[] };
  end?: { seq: number; deadline: number };
};

/** How often what could not go on is tried again. */
const stepMs = 20;
/** How long the end of a container waits for a log that cannot be written. */
const logEndMs = 5_000;
/** How long after an exec's exit its output is awaited from children that keep it open. */
const collectMs = 100;
/** Of an exec's output, what a flood on one stream leaves to the other. */
const reservedBytes = 1 << 20;
/** Reads of one source in a turn: enough to empty a FIFO, and a bound. */
const turnReads = 64;

const epoll = new Epoll();
const sources = new Map<number, Source>();
const logs = new Map<string, Log>();
const captures = new Map<string, Capture>();
const output = new LogOutput();
const captureBuffer = Buffer.allocUnsafeSlow(256 << 10);
const inbox: WorkerRequest[] = [];

function watch(fd: number, read: Source["read"], finish: () => void): Source {
  const source = { fd, read, finish, open: true };
  sources.set(fd, source);
  epoll.add(fd);
  return source;
}

function close(source: Source): void {
  if (!source.open) return;
  source.open = false;
  if (sources.delete(source.fd)) epoll.remove(source.fd);
  closeSync(source.fd);
}

function pause(source: Source): void {
  if (source.open && sources.delete(source.fd)) epoll.remove(source.fd);
}

function resume(source: Source): void {
  if (!source.open || sources.has(source.fd)) return;
  sources.set(source.fd, source);
  epoll.add(source.fd);
}

/** Reads what is there now; true when there was nothing more. */
function readAll(source: Source): boolean {
  for (let reads = 0; reads < turnReads && source.open; reads++) {
    const state = source.read();
    if (state === "end") close(source);
    if (state !== "more") return true;
  }
  return !source.open;
}

function openLog(path: string): number {
  if (path === "") return -1;
  mkdirSync(dirname(path), { recursive: true });
  return openSync(path, constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT, 0o640);
}

function startLog(request: LogRequest): void {
  const log: Log = { path: request.path, fd: openLog(request.path), sources: [], unwritten: [] };
  for (const stream of ["stdout", "stderr"] as const) {
    const fd = request[stream];
    if (fd === -1) continue; // a terminal has one stream
    const lines = new LogLines(stream);
    const read = () => {
      if (log.unwritten.length > 0) return "empty";
      const count = readNow(fd, lines.space());
      if (count < 0) return "empty";
      if (count === 0) return "end";
      lines.take(count, output);
      writeLog(log);
      return "more";
    };
    const finish = () => {
      lines.finish(output);
      writeLog(log);
    };
    log.sources.push(watch(fd, read, finish));
  }
  logs.set(request.id, log);
}

/** Writes what `output` collected. */
function writeLog(log: Log): void {
  const data = output.drain();
  if (log.fd === -1 || data.length === 0) return;
  if (log.unwritten.length > 0 || !append(log, data)) log.sources.forEach(pause);
}

/** False when the disk took not all of it; the rest is kept. */
function append(log: Log, data: Buffer): boolean {
  let written = 0;
  try {
    while (written < data.length) written += writeSync(log.fd, data, written);
    return true;
  } catch {
    log.unwritten.push(Buffer.from(data.subarray(written)));
    return false;
  }
}

function retryLog(log: Log): void {
  while (log.unwritten.length > 0) {
    if (!append(log, log.unwritten.shift()!)) {
      log.unwritten.unshift(log.unwritten.pop()!);
      return;
    }
  }
  log.sources.forEach(resume);
}

function reopenLog(id: string): void {
  const log = logs.get(id);
  if (log === undefined) throw new Error(`container ${id} has no open log`);
  if (log.path === "") return;
  const fd = openLog(log.path);
  closeSync(log.fd);
  log.fd = fd;
}

/** The container has exited, so what it wrote is in its FIFOs: their end is that they are empty. */
function stepLogEnd(id: string, log: Log): void {
  const late = performance.now() > log.end!.deadline;
  for (const source of log.sources) {
    if (!source.open) continue;
    if (!late && (log.unwritten.length > 0 || !readAll(source))) return;
    source.finish();
    close(source);
  }
  if (log.unwritten.length > 0 && !late) return;
  if (log.fd !== -1) closeSync(log.fd);
  logs.delete(id);
  reply({
    seq: log.end!.seq,
    lostBytes: log.unwritten.reduce((sum, part) => sum + part.length, 0),
  });
}

function startCapture(request: CaptureRequest): void {
  const capture: Capture = {
    sources: [],
    kept: { stdout: [], stderr: [] },
  };
  const bytes = { stdout: 0, stderr: 0 };
  for (const stream of ["stdout", "stderr"] as const) {
    const fd = request[stream];
    const read = () => {
      const count = readNow(fd, captureBuffer);
      if (count < 0) return "empty";
      if (count === 0) return "end";
      const others = Math.max(bytes[stream === "stdout" ? "stderr" : "stdout"], reservedBytes);
      const kept = Math.min(count, Math.max(0, request.maxBytes - others - bytes[stream]));
      if (kept > 0) capture.kept[stream].push(Buffer.from(captureBuffer.subarray(0, kept)));
      bytes[stream] += kept;
      return "more";
    };
    capture.sources.push(watch(fd, read, () => {}));
  }
  captures.set(request.id, capture);
}

function stepCollect(id: string, capture: Capture): void {
  let empty = true;
  for (const source of capture.sources) empty = readAll(source) && empty;
  const open = capture.sources.some((source) => source.open);
  if (open && (!empty || performance.now() < capture.end!.deadline)) return;
  capture.sources.forEach(close);
  captures.delete(id);
  const stdout = Buffer.concat(capture.kept.stdout);
  reply({ seq: capture.end!.seq, stdout, stderr: Buffer.concat(capture.kept.stderr) });
}

function reply(message: WorkerReply): void {
  parentPort!.postMessage(message);
}

function handle(request: WorkerRequest): void {
  const { seq, id } = request;
  switch (request.op) {
    case "log":
      startLog(request);
      return reply({ seq });
    case "reopen":
      reopenLog(id);
      return reply({ seq });
    case "capture":
      startCapture(request);
      return reply({ seq });
    case "end": {
      const log = logs.get(id);
      if (log === undefined) return reply({ seq, lostBytes: 0 });
      log.end = { seq, deadline: performance.now() + logEndMs };
      return;
    }
    case "collect": {
      const capture = captures.get(id);
      if (capture === undefined) throw new Error(`nothing is captured of exec ${id}`);
      capture.end = { seq, deadline: performance.now() + collectMs };
      return;
    }
  }
}

/** What could not be finished when it was asked for; true when some of it still cannot. */
function step(): boolean {
  for (const log of logs.values()) if (log.unwritten.length > 0) retryLog(log);
  for (const [id, log] of logs) if (log.end !== undefined) stepLogEnd(id, log);
  for (const [id, capture] of captures) if (capture.end !== undefined) stepCollect(id, capture);
  const waits = (item: Log | Capture) => item.end !== undefined;
  return (
    logs.values().some((log) => waits(log) || log.unwritten.length > 0) ||
    captures.values().some(waits)
  );
}

/** Messages come with the event loop, which this thread turns only for them. */
async function takeRequests(count: number): Promise<void> {
  for (let taken = 0; taken < count;) {
    const request = inbox.shift();
    if (request === undefined) {
      await new Promise((resolve) => setImmediate(resolve));
      continue;
    }
    taken++;
    try {
      handle(request);
    } catch (error) {
      reply({ seq: request.seq, error: messageOf(error) });
    }
  }
}

async function main(wakeFd: number): Promise<never> {
  parentPort!.on("message", (request: WorkerRequest) => inbox.push(request));
  epoll.add(wakeFd);
  for (let waiting = false; ;) {
    for (const fd of epoll.wait(waiting ? stepMs : -1)) {
      if (fd === wakeFd) await takeRequests(drainEventfd(wakeFd));
      else if (sources.get(fd)?.read() === "end") close(sources.get(fd)!);
    }
    waiting = step();
  }
}

await main((workerData as { wakeFd: number }).wakeFd);
