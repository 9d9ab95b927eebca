// Reads the output of containers and execs, as a worker thread of the monitor: a busy log never delays the
// monitor's answers. The thread waits only in epoll, never for one container: blocked work (a full disk, an
// exec whose child keeps its output open) is retried in later turns. A write to a stalled disk does block, so
// each file system with logs has its own thread (monitor/log_workers.ts).
import { constants } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import { epochMs } from "../base/clock.ts";
import { codeOf, type ErrorCode, messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { MemoryCounts } from "../node/memory_events.ts";
import { Descriptor, drainEventfd, type Released } from "../sys/descriptor.ts";
import { EPOLLET, EPOLLOUT, EPOLLPRI } from "../sys/epoll.ts";
import { LargePipes } from "../sys/large_pipes.ts";
import { collectGarbageNow } from "../sys/memory.ts";
import { Capture, type Captured } from "./capture.ts";
import { closeCopy, ContainerLog, type LogFormat, type LogStreams } from "./container_log.ts";
import { Inputs, type Input } from "./inputs.ts";
import { LargeFifos } from "./large_fifos.ts";
import { LogRetries } from "./log_retries.ts";
import { OutputFile } from "./output_file.ts";
import { Sink } from "./tap.ts";

export type LogRequest = { op: "log"; id: string; path: string; resumed: boolean } & LogStreams &
  LogFormat;
/**
 * `end`: the container has exited. `collect`: the exec has exited. Where a shim copies the output (isCopied),
 * both wait until it has closed the streams. `pause`: stops reading until `continue`, after writing what only
 * this thread buffers.
 */
export type WorkerBody =
  | LogRequest
  /** file: for output that is too large for memory; undefined: all of it is kept in memory. */
  | {
      op: "capture";
      id: string;
      stdout: Released;
      stderr: Released;
      maxBytes: number;
      file?: string | undefined;
    }
  | { op: "attach"; id: string; stdout: string; stderr: string }
  | { op: "reopen"; id: string }
  | { op: "end"; id: string; isCopied: boolean }
  | { op: "collect"; id: string; isCopied: boolean; drainMs?: number | undefined }
  | { op: "pause" | "continue" }
  /** Answered when the pidfd's process has ended. */
  | { op: "await"; pidfd: Released }
  /** Reads a cgroup's memory.events at each change, until `unwatch`. */
  | { op: "watch"; watch: number; events: Released; counts: SharedArrayBuffer }
  | { op: "unwatch"; watch: number }
  /** Ends this thread when it has nothing left to write. */
  | { op: "stop" };
type WorkerRequest = WorkerBody & { seq: number };
/** errno: the failure, while the log cannot be written; "" if it is unknown. sinceMs: since the epoch. */
export type LogTrouble = {
  id: string;
  path: string;
  droppedBytes: number;
  errno?: string;
  sinceMs: number;
};
/** The logs that cannot be written, or lack output; droppedBytes: by this thread, also of logs that have ended. */
export type LogReport = { troubles: LogTrouble[]; droppedBytes: number };
/** seq: the request's, or 0 in the first message, which says that the thread has started, and in reports. */
export type WorkerReply = {
  seq: number;
  report?: LogReport;
  error?: { code: ErrorCode; message: string };
  lostBytes?: number;
} & Partial<Captured>;
/** copiedUntil: the limit for a shim to copy the rest. Both by performance.now(). */
type End = { seq: number; deadline: number; copiedUntil: number };

/**
 * Decision: after reading all output of a container, the thread pauses this long instead of waking at the
 * next write. A container that writes continuously is then not interrupted at each write, and many writes are
 * handled in one turn. Output of an idle container is still read at once; meanwhile, its FIFO has room for
 * several such pauses.
 */
const gatherMs = 1;
const nobody = new Int32Array(new SharedArrayBuffer(4));
/** Interval of looks at slow clients, and at what ends. */
const stepMs = 20;
/** Limit for writing the rest of an exited container's log. */
const logEndMs = 5_000;
/** Limit for output of children that keep an exec's streams open, if the request has none of its own. */
const collectMs = 100;
/** Limit, after an exit, for a shim that copies the output: as long as shims wait themselves. */
const copyMs = 2_000;
/**
 * Pauses between two rounds of dropping output: 150 times as long as the round took, so that chatty containers on a
 * full disk take about a hundredth of a core.
 */
const dropPauses = { share: 150, leastMs: 10, mostMs: 500 };
/** A log that fails for less time is not reported; also the pause between two reports. */
const reportMs = 1_000;
/** Garbage is collected after this long without input, if there was much since the last time. */
const idleMs = 1_000;
/** A line now and then is not worth a collection, which takes some milliseconds. */
const turnsWorth = 1_000;

const { wake: released, largePipes } = workerData as {
  wake: Released;
  largePipes: SharedArrayBuffer;
};
const wakeUp = Descriptor.adopt(released);
const inputs = new Inputs(wakeUp);
const logs = new Map<string, { log: ContainerLog; end?: End }>();
const retries = new LogRetries();
const fifos = new LargeFifos(new LargePipes(largePipes));
const captures = new Map<string, { capture: Capture; end?: End }>();
/** Watched cgroups' memory.events, by the caller's number. */
const watches = new Map<number, Input>();
/** Attached clients' FIFOs, and the log that they follow. */
const sinks = new Map<Sink, ContainerLog>();
const lagging = new Set<Sink>();
const inbox: WorkerRequest[] = [];
/** The time (performance.now()) of the next round of dropping. */
let dropAt = 0;
/** The next report's time (performance.now()); there is one while a log fails and once after it. */
let reportAt = 0;
let isReportDue = false;
let reported = "";
/** Bytes dropped of logs that have ended. */
let droppedBefore = 0;
let paused = false;
let stopping = false;

function startLog({ id, path, resumed, ...streams }: LogRequest): void {
  const earlier = logs.get(id);
  retries.forget(id);
  const events = {
    failed: (errno: string) => {
      isReportDue = true;
      retries.failed(id, errno, performance.now());
    },
    succeeded: () => {
      isReportDue = true;
      retries.succeeded(id);
      for (const input of log.inputs) inputs.listen(input, true);
    },
  };
  const log = new ContainerLog(path, streams, resumed, { events, fifos });
  if (earlier !== undefined) closeLog(earlier); // an earlier start timed out, and its disk answered later
  logs.set(id, { log });
  for (const input of log.inputs) inputs.add(input);
}

function watchMemory(request: Extract<WorkerRequest, { op: "watch" }>): void {
  const counts = new MemoryCounts(request.counts);
  const descriptor = Descriptor.adopt(request.events);
  const input: Input = { descriptor, turn: () => (counts.read(descriptor), "empty") };
  watches.set(request.watch, input);
  inputs.add(input, EPOLLPRI | EPOLLET);
  inputs.wake(input); // it may have changed before
}

/** Each path is a FIFO that a client reads, or "". */
function attach(request: Extract<WorkerRequest, { op: "attach" }>): void {
  const found = logs.get(request.id);
  if (found === undefined) {
    throw new Error(`container ${request.id} has ended and has no more output`);
  }
  for (const stream of ["stdout", "stderr"] as const) {
    if (request[stream] === "") continue;
    const flags = constants.O_WRONLY | constants.O_NONBLOCK;
    const sink = new Sink(Descriptor.open(request[stream], flags));
    sinks.set(sink, found.log);
    inputs.add(sink, EPOLLOUT | EPOLLET);
    found.log.attach(stream, sink);
  }
}

/** Closes finished sinks, wakes logs whose slow client has caught up; true while any client lags. */
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

/**
 * Ends the log of an exited container: all its output is in its FIFOs, so they only need to be drained, unless
 * a shim copies it.
 */
function stepLogEnd(id: string, { log, end }: { log: ContainerLog; end: End }): void {
  const now = performance.now();
  if (log.hasWriter && now < Math.min(end.copiedUntil, end.deadline)) return;
  const late = now > end.deadline || log.isDropping;
  if (log.isDropping) log.retry(); // there may be room just now
  const drained = !log.blocked && log.inputs.every((input) => inputs.drain(input)) && !log.blocked;
  const written = drained && log.writeRest();
  if (!written && !late) return;
  const lostBytes = written ? 0 : log.unwritten();
  isReportDue ||= log.trouble !== undefined;
  droppedBefore += log.trouble?.droppedBytes ?? 0;
  logs.delete(id);
  retries.forget(id);
  closeLog({ log, end }, lostBytes);
}

function closeLog({ log, end }: { log: ContainerLog; end?: End }, lostBytes = 0): void {
  log.close();
  for (const input of log.inputs) inputs.close(input);
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

function endOf({ seq, isCopied }: { seq: number; isCopied: boolean }, limitMs: number): End {
  const now = performance.now();
  return { seq, deadline: now + limitMs, copiedUntil: isCopied ? now + copyMs : 0 };
}

function reply(message: WorkerReply): void {
  parentPort!.postMessage(message);
}

function handle(request: WorkerRequest): void {
  const { seq } = request;
  switch (request.op) {
    case "log":
      startLog(request);
      return reply({ seq });
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
      const file = request.file === undefined ? undefined : new OutputFile(request.file);
      const capture = new Capture(request, request.maxBytes, file);
      captures.set(request.id, { capture });
      for (const input of capture.inputs) inputs.add(input);
      return reply({ seq });
    }
    case "end": {
      const log = logs.get(request.id);
      if (log === undefined) return reply({ seq, lostBytes: 0 });
      log.end = endOf(request, logEndMs);
      log.log.ending();
      return;
    }
    case "collect": {
      const capture = captures.get(request.id);
      if (capture === undefined) throw new Error(`exec ${request.id} has no captured output`);
      const { isCopied, drainMs = collectMs } = request;
      capture.end = endOf(request, isCopied ? copyMs : drainMs);
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

/** Drops output of logs that have not been writable for long; returns the milliseconds until the next round. */
function stepDrops(): number | undefined {
  const failing = retries.failing.map((id) => logs.get(id)!.log);
  for (const log of failing) {
    const listens = !log.isDropping || log.isFollowed;
    for (const input of log.inputs) inputs.listen(input, listens);
  }
  const dropping = failing.filter((log) => log.isDropping);
  if (dropping.length === 0) return undefined;
  const begin = performance.now();
  if (begin >= dropAt) {
    for (const log of dropping) log.drop();
    const { share, leastMs, mostMs } = dropPauses;
    const end = performance.now();
    dropAt = end + Math.min(Math.max((end - begin) * share, leastMs), mostMs);
  }
  return Math.max(0, Math.ceil(dropAt - performance.now()));
}

/** Tells the main thread of logs that fail; returns the milliseconds until the next report. */
function stepReport(): number | undefined {
  if (!isReportDue) return undefined;
  const now = performance.now();
  if (now < reportAt) return Math.ceil(reportAt - now);
  reportAt = now + reportMs;
  isReportDue = retries.failing.length > 0;
  const troubles = [...logs].flatMap(([id, { log }]) => troubleOf(id, log, now));
  const dropped = troubles.reduce((sum, one) => sum + one.droppedBytes, droppedBefore);
  const report = { troubles, droppedBytes: dropped };
  const text = jsonText(report);
  if (text !== reported) reply({ seq: 0, report });
  reported = text;
  return isReportDue ? reportMs : undefined;
}

function troubleOf(id: string, { trouble }: ContainerLog, now: number): LogTrouble[] {
  if (trouble === undefined) return [];
  const { path, droppedBytes, failure } = trouble;
  const isFailing = failure !== undefined && now - failure.since >= reportMs;
  if (!isFailing) return droppedBytes > 0 ? [{ id, path, droppedBytes, sinceMs: 0 }] : [];
  const sinceMs = Math.round(epochMs(failure.since));
  return [{ id, path, droppedBytes, errno: failure.errno, sinceMs }];
}

/** Retries unfinished work. waitMs: until the next step; undefined: none is unfinished. isUrgent: clients wait for it. */
function step(): { isUrgent: boolean; waitMs?: number | undefined } {
  const now = performance.now();
  for (const { log, end } of logs.values()) {
    // While a log is blocked, a shim cannot copy the rest: its time begins again.
    const waits = log.blocked && !log.isDropping;
    if (waits && end !== undefined && end.copiedUntil > 0) end.copiedUntil = now + copyMs;
  }
  for (const id of retries.due(now)) {
    const { log } = logs.get(id)!;
    log.retry();
    wake(log);
  }
  for (const [id, { log, end }] of logs) if (end !== undefined) stepLogEnd(id, { log, end });
  for (const [id, { capture, end }] of captures) {
    if (end !== undefined) stepCollect(id, { capture, end });
  }
  const lags = stepSinks();
  const isUrgent =
    lags ||
    logs.values().some(({ end }) => end !== undefined) ||
    captures.values().some(({ end }) => end !== undefined);
  const urgentMs = isUrgent ? stepMs : undefined;
  const waits = [urgentMs, stepDrops(), stepReport(), fifos.shrink(now), retries.waitMs(now)];
  const next = waits.filter((ms) => ms !== undefined);
  return { isUrgent, waitMs: next.length > 0 ? Math.min(...next) : undefined };
}

/** Runs the event loop until `count` messages have arrived: this thread does so only for them. */
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
      reply({ seq: request.seq, error: { code: codeOf(error), message: messageOf(error) } });
    }
  }
}

function isDone(): boolean {
  return stopping && logs.size === 0 && sinks.size === 0;
}

async function main(): Promise<void> {
  parentPort!.on("message", (request: WorkerRequest) => inbox.push(request));
  reply({ seq: 0 });
  let next: ReturnType<typeof step> = { isUrgent: false };
  let worked = false;
  let turned = 0;
  while (!isDone()) {
    const busy = inputs.anyReady && !paused;
    const unfinished = next.waitMs !== undefined;
    const news = inputs.wait(busy ? 0 : (next.waitMs ?? (worked ? idleMs : -1)));
    const isIdle = worked && !busy && !unfinished && !news.any;
    if (isIdle && turned >= turnsWorth) {
      collectGarbageNow();
      turned = 0;
    }
    worked = busy || unfinished || news.any;
    if (news.wakened) await takeRequests(drainEventfd(wakeUp));
    if (paused) continue;
    const turns = inputs.turns();
    turned += turns.length;
    next = step();
    const gathers = turns.includes("some") && !turns.includes("more") && !next.isUrgent;
    if (gathers) Atomics.wait(nobody, 0, 0, gatherMs); // a sleep
  }
}

await main();
inputs[Symbol.dispose]();
wakeUp.close();
closeCopy();
parentPort!.close();
