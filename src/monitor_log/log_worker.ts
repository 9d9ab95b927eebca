// A worker thread of the monitor: reads the output of containers and execs as it comes. It waits in
// epoll, so a busy log never delays the monitor's answers. Nothing in it waits for one container:
// what cannot go on now (a full disk, an exec whose child holds its output) is a step of a later turn.
// A write to a disk that stalls does wait, so each file system with logs has a thread of its own
// (log_workers.ts).
import { constants } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import { messageOf } from "../base/errors.ts";
import { MemoryCounts } from "../node/memory_events.ts";
import { Descriptor, drainEventfd, type Released } from "../sys/descriptor.ts";
import { EPOLLET, EPOLLOUT, EPOLLPRI } from "../sys/epoll.ts";
import { collectGarbage } from "../sys/memory.ts";
import { Capture } from "./capture.ts";
import { closeCopy, ContainerLog, type LogStreams } from "./container_log.ts";
import { Inputs, type Input } from "./inputs.ts";
import { Sink } from "./tap.ts";

type LogRequest = { op: "log"; id: string; path: string; resumed: boolean } & LogStreams;
type CaptureRequest = {
  op: "capture";
  id: string;
  stdout: Released;
  stderr: Released;
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
  /** Answered when the process of a pidfd has ended. */
  | { op: "await"; pidfd: Released }
  /** Reads a cgroup's memory.events at each change, until `unwatch`. */
  | { op: "watch"; watch: number; events: Released; counts: SharedArrayBuffer }
  | { op: "unwatch"; watch: number }
  /** Ends this thread as soon as it has nothing left to write. */
  | { op: "stop" }
);
export type WorkerReply = {
  seq: number;
  error?: string;
  lostBytes?: number;
  stdout?: Uint8Array;
  stderr?: Uint8Array;
};
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

const { wake: released } = workerData as { wake: Released };
const wakeUp = Descriptor.adopt(released);
const inputs = new Inputs(wakeUp);
const logs = new Map<string, { log: ContainerLog; end?: End }>();
const captures = new Map<string, { capture: Capture; end?: End }>();
/** Cgroups whose memory.events are read, by the caller's number for each. */
const watches = new Map<number, Input>();
/** Attached clients' FIFOs, and whose output they get. */
const sinks = new Map<Sink, ContainerLog>();
const lagging = new Set<Sink>();
const inbox: WorkerRequest[] = [];
let paused = false;
/** Ends when it has nothing left to write. */
let stopping = false;

function startLog({ id, path, resumed, ...streams }: LogRequest): void {
  const earlier = logs.get(id);
  const log = new ContainerLog(path, streams, resumed);
  if (earlier !== undefined) closeLog(earlier); // its disk answered after its start was given up
  logs.set(id, { log });
  for (const input of log.inputs) inputs.add(input);
}

function watchMemory(request: Extract<WorkerRequest, { op: "watch" }>): void {
  const counts = new MemoryCounts(request.counts);
  const descriptor = Descriptor.adopt(request.events);
  const input: Input = { descriptor, turn: () => (counts.read(descriptor), "empty") };
  watches.set(request.watch, input);
  inputs.add(input, EPOLLPRI | EPOLLET);
  inputs.wake(input); // what has changed before
}

/** Each path a FIFO that a client reads, or "". */
function attach(request: Extract<WorkerRequest, { op: "attach" }>): void {
  const found = logs.get(request.id);
  if (found === undefined) throw new Error(`container ${request.id} has no output any more`);
  for (const stream of ["stdout", "stderr"] as const) {
    if (request[stream] === "") continue;
    const flags = constants.O_WRONLY | constants.O_NONBLOCK;
    const sink = new Sink(Descriptor.open(request[stream], flags));
    sinks.set(sink, found.log);
    inputs.add(sink, EPOLLOUT | EPOLLET);
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
    inputs.close(sink);
  }
  return lagging.size > 0;
}

/** The container has exited, so what it wrote is in its FIFOs: their end is that they are empty. */
function stepLogEnd(id: string, { log, end }: { log: ContainerLog; end: End }): void {
  const late = performance.now() > end.deadline;
  const drained = !log.blocked && log.inputs.every((input) => inputs.drain(input)) && !log.blocked;
  const written = drained && log.writeRest();
  if (!written && !late) return;
  const lostBytes = written ? 0 : log.unwritten();
  logs.delete(id);
  closeLog({ log, end }, lostBytes);
}

function closeLog({ log, end }: { log: ContainerLog; end?: End }, lostBytes = 0): void {
  for (const input of log.inputs) inputs.close(input);
  log.close();
  if (end !== undefined) reply({ seq: end.seq, lostBytes });
}

function stepCollect(id: string, { capture, end }: { capture: Capture; end: End }): void {
  let empty = true;
  for (const input of capture.inputs) empty = inputs.drain(input) && empty;
  const open = capture.inputs.some((input) => inputs.isOpen(input));
  if (open && (!empty || performance.now() < end.deadline)) return;
  for (const input of capture.inputs) inputs.close(input);
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
      for (const input of capture.inputs) inputs.add(input);
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
    case "await": {
      const descriptor = Descriptor.adopt(request.pidfd);
      return inputs.add({ descriptor, turn: () => (reply({ seq }), "end") });
    }
    case "watch":
      watchMemory(request);
      return reply({ seq });
    case "unwatch": {
      const input = watches.get(request.watch);
      watches.delete(request.watch);
      if (input !== undefined) inputs.close(input);
      return reply({ seq });
    }
    case "stop":
      stopping = true;
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
  for (const input of log.inputs) inputs.wake(input);
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

function isDone(): boolean {
  return stopping && logs.size === 0 && sinks.size === 0;
}

async function main(): Promise<void> {
  parentPort!.on("message", (request: WorkerRequest) => inbox.push(request));
  let unfinished = false;
  let worked = false;
  while (!isDone()) {
    const busy = inputs.anyReady && !paused;
    const news = inputs.wait(busy ? 0 : unfinished ? stepMs : worked ? idleMs : -1);
    if (worked && !busy && !unfinished && !news.any) collectGarbage();
    worked = busy || unfinished || news.any;
    if (news.wakened) await takeRequests(drainEventfd(wakeUp));
    if (paused) continue;
    const turns = inputs.turns();
    unfinished = step();
    const gathers = turns.includes("some") && !turns.includes("more") && !unfinished;
    if (gathers) Atomics.wait(nobody, 0, 0, gatherMs); // nobody wakes it
  }
}

await main();
inputs[Symbol.dispose]();
wakeUp.close();
closeCopy();
parentPort!.close();
