// A worker thread of the monitor: reads the output of containers and execs as it comes. It waits in
// epoll, so a busy log never delays the monitor's answers. Nothing in it waits for one container:
// what cannot go on now (a full disk, an exec whose child holds its output) is a step of a later turn.
// A write to a disk that stalls does wait, so each file system with logs has a thread of its own
// (worker_client.ts).
import { closeSync, constants, openSync } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import { messageOf } from "../base/errors.ts";
import { MemoryCounts } from "../node/memory_events.ts";
import { drainEventfd, Epoll, EPOLLERR, EPOLLET, EPOLLOUT, EPOLLPRI } from "../sys/descriptor.ts";
import { collectGarbage } from "../sys/memory.ts";
import { Capture } from "./capture.ts";
import { ContainerLog, type LogFds } from "./container_log.ts";
import type { Turn } from "./log_lines.ts";
import { Sink } from "./tap.ts";

type LogRequest = { op: "log"; id: string; path: string; resumed: boolean } & LogFds;
type CaptureRequest = {
  op: "capture";
  id: string;
  stdout: number;
  stderr: number;
  maxBytes: number;
};
/**
 * `end`: the container has exited. `collect`: the exec has exited. `pause`: nothing more is read, and
 * what only this thread knows is written, until `continue`.
 */
export type WorkerRequest = { seq: number } & (
  | LogRequest
  | CaptureRequest
  | { op: "attach"; id: string; stdout: string; stderr: string }
  | { op: "reopen" | "end" | "collect"; id: string }
  | { op: "pause" | "continue" }
  /** Answered when fd, a pidfd, is readable. */
  | { op: "await"; fd: number }
  /** Reads a cgroup's memory.events at each change; fd is this thread's until `unwatch`. */
  | { op: "watch"; fd: number; counts: SharedArrayBuffer }
  | { op: "unwatch"; fd: number }
);
export type WorkerReply = {
  seq: number;
  error?: string;
  lostBytes?: number;
  stdout?: Uint8Array;
  stderr?: Uint8Array;
};
type Reader = { turn: (fd: number) => Turn; cut?: () => void };
type End = { seq: number; deadline: number };

/**
 * Decision: whose output was taken whole is looked at again after this long, not at its next write. A
 * container that writes on and on is then not interrupted at each piece, and many pieces are one turn.
 * What a quiet one writes is taken at once, and what comes in that time waits in its FIFO, which has
 * room for what a program writes in several times as long.
 */
const gatherMs = 1;
const nobody = new Int32Array(new SharedArrayBuffer(4));
/** How often what could not go on is tried again. */
const stepMs = 20;
/** How long the end of a container waits for a log that cannot be written. */
const logEndMs = 5_000;
/** How long after an exec's exit its output is awaited from children that keep it open. */
const collectMs = 100;
/** How long nothing may have come until the memory of what came is freed. */
const idleMs = 1_000;
/** Turns of one stream in a row: enough to empty a FIFO, and a bound. */
const maxTurns = 64;

const epoll = new Epoll();
/** Open descriptors by number, and who reads them. */
const readers = new Map<number, Reader>();
/** Those that may have something: epoll tells of what came only once. */
const ready = new Set<number>();
const logs = new Map<string, { log: ContainerLog; end?: End }>();
const captures = new Map<string, { capture: Capture; end?: End }>();
/** Attached clients' FIFOs, and whose output they get. */
const sinks = new Map<Sink, ContainerLog>();
const lagging = new Set<Sink>();
const inbox: WorkerRequest[] = [];
let paused = false;

function watch(reader: ContainerLog | Capture): void {
  for (const fd of reader.fds) {
    readers.set(fd, reader);
    epoll.add(fd);
  }
}

/** The monitor may have another descriptor of the same file, which would keep it in epoll. */
function close(fd: number): void {
  if (!readers.delete(fd)) return;
  ready.delete(fd);
  epoll.remove(fd);
  closeSync(fd);
}

function turn(fd: number): Turn {
  const state = readers.get(fd)?.turn(fd) ?? "end";
  if (state === "end") close(fd);
  if (state === "end" || state === "empty") ready.delete(fd);
  return state;
}

/** Reads what is there now; true when there was nothing more. */
function readAll(fd: number): boolean {
  for (let turns = 0; turns < maxTurns; turns++) {
    const state = turn(fd);
    if (state === "end" || state === "empty") return true;
  }
  return false;
}

function startLog(request: LogRequest): void {
  try {
    const log = new ContainerLog(request.path, request, request.resumed);
    logs.set(request.id, { log });
    watch(log);
  } catch (error) {
    for (const fd of [request.stdout, request.stderr]) if (fd !== -1) closeSync(fd);
    throw error;
  }
}

function watchMemory({ fd, counts }: Extract<WorkerRequest, { op: "watch" }>): void {
  const shared = new MemoryCounts(counts);
  readers.set(fd, { turn: () => (shared.read(fd), "empty") });
  epoll.add(fd, EPOLLPRI | EPOLLET);
  ready.add(fd); // what has changed before
}

/** Each path a FIFO that a client reads, or "". */
function attach(request: Extract<WorkerRequest, { op: "attach" }>): void {
  const found = logs.get(request.id);
  if (found === undefined) throw new Error(`container ${request.id} has no output any more`);
  for (const stream of ["stdout", "stderr"] as const) {
    if (request[stream] === "") continue;
    const sink = new Sink(openSync(request[stream], constants.O_WRONLY | constants.O_NONBLOCK));
    sinks.set(sink, found.log);
    readers.set(sink.fd, sink);
    epoll.add(sink.fd, EPOLLOUT | EPOLLET);
    found.log.attach(stream, sink);
  }
}

/** Closes what its client has left or got all of, goes on where one has caught up; true while any lags. */
function stepSinks(): boolean {
  for (const [sink, log] of sinks) {
    sink.cutIfStuck();
    if (sink.waiting) lagging.add(sink);
    else if (lagging.delete(sink)) wake(log);
    if (!sink.done) continue;
    sinks.delete(sink);
    close(sink.fd);
  }
  return lagging.size > 0;
}

/** The container has exited, so what it wrote is in its FIFOs: their end is that they are empty. */
function stepLogEnd(id: string, { log, end }: { log: ContainerLog; end: End }): void {
  const late = performance.now() > end.deadline;
  const drained = !log.blocked && log.fds.every(readAll) && !log.blocked;
  const written = drained && log.writeRest("F");
  if (!written && !late) return;
  const lostBytes = written ? 0 : log.unwritten();
  log.fds.forEach(close);
  log.close();
  logs.delete(id);
  reply({ seq: end.seq, lostBytes });
}

function stepCollect(id: string, { capture, end }: { capture: Capture; end: End }): void {
  let empty = true;
  for (const fd of capture.fds) empty = readAll(fd) && empty;
  const open = capture.fds.some((fd) => readers.has(fd));
  if (open && (!empty || performance.now() < end.deadline)) return;
  capture.fds.forEach(close);
  captures.delete(id);
  reply({ seq: end.seq, ...capture.collected() });
}

function reply(message: WorkerReply): void {
  parentPort!.postMessage(message);
}

function handle(request: WorkerRequest): void {
  const { seq } = request;
  switch (request.op) {
    case "log": {
      startLog(request);
      return reply({ seq });
    }
    case "reopen": {
      const log = logs.get(request.id);
      if (log === undefined) throw new Error(`container ${request.id} has no open log`);
      log.log.reopen();
      wake(log.log);
      return reply({ seq });
    }
    case "attach":
      attach(request);
      return reply({ seq });
    case "capture": {
      const capture = new Capture(request, request.maxBytes);
      captures.set(request.id, { capture });
      watch(capture);
      return reply({ seq });
    }
    case "end": {
      const log = logs.get(request.id);
      if (log === undefined) return reply({ seq, lostBytes: 0 });
      log.end = { seq, deadline: performance.now() + logEndMs };
      log.log.ending();
      return;
    }
    case "collect": {
      const capture = captures.get(request.id);
      if (capture === undefined) throw new Error(`nothing is captured of exec ${request.id}`);
      capture.end = { seq, deadline: performance.now() + collectMs };
      return;
    }
    case "await":
      readers.set(request.fd, { turn: () => (reply({ seq }), "end") });
      epoll.add(request.fd);
      return;
    case "watch":
      watchMemory(request);
      return reply({ seq });
    case "unwatch":
      close(request.fd);
      return reply({ seq });
    case "pause":
      paused = true;
      for (const [id, { log }] of logs) {
        if (!log.flush()) throw new Error(`the log of container ${id} cannot be written`);
      }
      return reply({ seq });
    case "continue":
      paused = false;
      return reply({ seq });
  }
}

function wake(log: ContainerLog): void {
  for (const fd of log.fds) if (readers.has(fd)) ready.add(fd);
}

/** What could not be finished when it was asked for; true when some of it still cannot. */
function step(): boolean {
  for (const { log } of logs.values()) {
    if (!log.blocked) continue;
    log.retry();
    wake(log);
  }
  for (const [id, { log, end }] of logs) if (end !== undefined) stepLogEnd(id, { log, end });
  for (const [id, { capture, end }] of captures) {
    if (end !== undefined) stepCollect(id, { capture, end });
  }
  const lags = stepSinks();
  return (
    lags ||
    logs.values().some(({ log, end }) => end !== undefined || log.blocked) ||
    captures.values().some(({ end }) => end !== undefined)
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
  let unfinished = false;
  let worked = false;
  for (;;) {
    const busy = ready.size > 0 && !paused;
    let requests = 0;
    const found = epoll.wait(busy ? 0 : unfinished ? stepMs : worked ? idleMs : -1);
    if (worked && !busy && !unfinished && found.length === 0) collectGarbage();
    worked = busy || unfinished || found.length > 0;
    for (const { fd, events } of found) {
      if (fd === wakeFd) requests = drainEventfd(wakeFd);
      else ready.add(fd);
      // Of a FIFO that is written to: its reader has gone.
      if ((events & EPOLLERR) !== 0) readers.get(fd)?.cut?.();
    }
    if (requests > 0) await takeRequests(requests);
    if (paused) continue;
    const turns = [...ready].map(turn);
    unfinished = step();
    const gathers = turns.includes("some") && !turns.includes("more") && !unfinished;
    if (gathers) Atomics.wait(nobody, 0, 0, gatherMs); // nobody wakes it
  }
}

await main((workerData as { wakeFd: number }).wakeFd);
