// Runs the monitor: one process per node, subreaper and parent of every container, which outlives the daemon.
// This file has its main loop: the socket, SIGCHLD, and the conditions for its end.
import { EventEmitter } from "node:events";
import { rmSync } from "node:fs";
import type { Socket } from "node:net";
import { join } from "node:path";
import { beginCall, endActivity, within } from "../base/activity.ts";
import { executableId, version } from "../base/build.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { Gate } from "../base/gate.ts";
import { type Log, logFailure } from "../base/log.ts";
import { cgroupMounts } from "../node/cgroup.ts";
import { CgroupAttachLock } from "../node/cgroup_attach.ts";
import { Orphans, orphanScanMs } from "../sys/zombies.ts";
import { becomeSubreaper } from "../sys/wait.ts";
import { returnMemory } from "../sys/memory.ts";
import { Containers } from "./containers.ts";
import { Execs } from "./exec.ts";
import { endLeftCalls } from "./left_calls.ts";
import { trimMonitorLogFile } from "./monitor_log_file.ts";
import { MonitorLock } from "./monitor_lock.ts";
import {
  readFrames,
  writeFrame,
  type Calls,
  type EventHeader,
  type RequestHeader,
  type StartRequest,
  type TaskRequest,
} from "./protocol.ts";
import type { RunRecord } from "./record_schemas.ts";
import { RecordFolder } from "./records.ts";
import { withRuntimeTimes } from "./runtime_times.ts";
import { Spawner } from "./spawner.ts";
import { upgrade, type Inherited } from "./upgrade.ts";
import { LogWorkers } from "./log_workers.ts";

/** The monitor ends after this long without a connection and a container. */
const idleMs = 3_000;
/** Read at the start: the file may be replaced later. */
const executable = executableId();

type Parts = {
  state: string;
  lock: MonitorLock;
  containers: Containers;
  execs: Execs;
  workers: LogWorkers;
  gate: Gate;
};
/** gone: aborts at the end of the caller's connection. send: to the caller. */
type Caller = Parts & { gone: AbortSignal; send: (event: EventHeader) => void };
type Answer<Result = unknown> = { result: Result; body?: Uint8Array[] };

/** Runs the monitor in `<state>/monitor`; returns when it is no longer needed. */
export async function monitorMain(state: string, inherited: Inherited, log: Log): Promise<void> {
  const folder = join(state, "monitor");
  const connections = new Set<Socket>();
  const onConnection = (socket: Socket) => {
    connections.add(socket);
    socket.on("close", () => connections.delete(socket));
    serve(socket, parts, log, () => activity++);
  };
  const lock = await MonitorLock.take({ folder, lock: inherited.lock, onConnection });
  if (lock === undefined) return log.info("another monitor has the lock, ending");
  becomeSubreaper();
  let activity = 0;
  const workers = new LogWorkers((error) => {
    log.error("log worker failed", { error: messageOf(error) });
    process.exit(1); // the daemon starts another, which resumes the logs
  });
  const spawner = new Spawner(folder, new CgroupAttachLock(cgroupMounts()));
  const records = new RecordFolder(folder);
  const containers = new Containers({
    folder,
    records,
    workers,
    spawner,
    log,
    announce: (exit) =>
      connections.forEach((socket) => writeFrame(socket, { event: "exit", exit })),
  });
  const { runtimes } = containers;
  const execs = new Execs(workers, (container) => runtimes.execsOf(container));
  const parts: Parts = {
    state,
    lock,
    containers,
    execs,
    workers,
    gate: new Gate("the monitor's calls under way"),
  };
  // No call is under way during an upgrade in place.
  if (inherited.lock === undefined) await endLeftCalls(folder, log);
  await containers.resume(inherited.terminals);
  process.on("SIGCHLD", () => {
    containers.checkChildren();
    runtimes.execs.check();
  });
  const signalled = endingSignals();
  await lock.listen();
  log.info("monitor ready", { pid: process.pid, containers: containers.running.length });
  using _ = returnMemory(() => ({ count: activity, goesOn: false }));
  const orphans = new Orphans();
  const look = () => {
    containers.check();
    runtimes.execs.check();
    containers.retry();
    records.keepFolders();
    keepLock(parts, log).catch(logFailure(log, "keeping the state folder failed, retrying"));
    const known = new Set([...containers.pids, ...runtimes.execs.pids]);
    orphans.reap((pid) => known.has(pid), spawner.startingSince);
  };
  await untilIdle(signalled, { look, log }, () => {
    if (containers.running.length > 0 || containers.exits.hasUnwritten || spawner.busy)
      return "busy";
    if (containers.starts.ids.length > 0) return "busy"; // one may be held
    return connections.size > 0 ? "connected" : "idle";
  });
  await lock.leave();
}

/** Restores the lock, or ends this process when another monitor has it, which adopts the containers. */
async function keepLock({ state, lock, containers, gate }: Parts, log: Log): Promise<void> {
  trimMonitorLogFile(state);
  // Behind the gate: an upgrade passes the lock on.
  const kept = await gate.pass(() => lock.keep());
  if (kept === "lost") {
    log.error("another monitor has locked the state folder, ending");
    process.exit(1);
  }
  if (kept === "kept") return;
  log.error("the state folder was removed: creating it and all records again");
  containers.rewrite();
}

/** Signals end a monitor that has no container; one with containers stays. */
function endingSignals(): EventEmitter {
  const signalled = new EventEmitter();
  for (const signal of ["SIGINT", "SIGTERM", "SIGQUIT"] as const) {
    process.on(signal, () => signalled.emit("end"));
  }
  return signalled;
}

/** look: called at intervals. It may throw if no descriptor is free; the monitor goes on, since ending helps nobody. */
function untilIdle(
  signalled: EventEmitter,
  { look, log }: { look: () => void; log: Log },
  state: () => "busy" | "connected" | "idle",
): Promise<void> {
  const stateNow = () => {
    try {
      look();
      return state();
    } catch (error) {
      log.warn("a look at the containers failed, retrying", { error: messageOf(error) });
      return "busy";
    }
  };
  return new Promise((resolve) => {
    let idle = 0;
    const end = () => {
      clearInterval(timer);
      resolve();
    };
    const timer = setInterval(() => {
      idle = stateNow() === "idle" ? idle + orphanScanMs : 0;
      if (idle >= idleMs) end();
    }, orphanScanMs);
    signalled.on("end", () => {
      if (stateNow() !== "busy") end();
    });
  });
}

function serve(socket: Socket, parts: Parts, log: Log, onWork: () => void): void {
  /** Execs of this connection, whose results nobody else can fetch. */
  const execs = new Map<string, { isCancelled: boolean }>();
  socket.on("error", (error) => log.warn("connection failed", { error: error.message }));
  const gone = new AbortController();
  const send = (event: EventHeader) => writeFrame(socket, event);
  const caller: Caller = { ...parts, gone: gone.signal, send };
  socket.on("close", () => execs.forEach((_, key) => parts.execs.abandon(key)));
  socket.on("close", () => gone.abort());
  readFrames(socket, (header) => {
    const request = header as unknown as RequestHeader;
    const { call } = request;
    const { id, key = "" } = request.params as { id?: string; key?: string };
    if (call !== "ping") onWork();
    const exec = execs.get(key) ?? { isCancelled: false };
    const beginsExec = call === "exec" || call === "startExec";
    if (beginsExec) execs.set(key, exec);
    if (call === "cancelExec") exec.isCancelled = true;
    const isWanted = () => !socket.destroyed && !(beginsExec && exec.isCancelled);
    const begun = beginCall(call, { subject: () => ({ container: id }) });
    const answered = within(begun, () => admit(caller, request, isWanted)).then((answer) => {
      const { result, body } = answer;
      endActivity(begun);
      if (endsExec.has(call) && !parts.execs.isOpen(key)) execs.delete(key);
      // The caller has disconnected while the exec started.
      if (call === "startExec" && socket.destroyed) parts.execs.abandon(key);
      writeFrame(socket, { seq: request.seq, result }, body);
    });
    answered.catch((error: unknown) => {
      endActivity(begun, error);
      if (beginsExec || call === "waitExec") execs.delete(key);
      const failure = { code: codeOf(error), message: messageOf(error) };
      if (call === "upgrade") {
        log.error("the upgrade failed, this build goes on", { error: failure.message });
      }
      writeFrame(socket, { seq: request.seq, error: failure });
    });
  });
}

const endsExec: ReadonlySet<keyof Calls> = new Set(["exec", "waitExec", "cancelExec"]);
const ungated: ReadonlySet<keyof Calls> = new Set([
  "upgrade",
  "cancelExec",
  "startCreated",
  "ping",
  "inspect",
]);

/**
 * Holds calls up while the monitor is being upgraded, except those that the upgrade waits for, or that only look.
 * @throws CriError CANCELLED for a call that was cancelled while it waited: it does not begin.
 */
function admit(caller: Caller, request: RequestHeader, isWanted: () => boolean): Promise<Answer> {
  const { gate, containers } = caller;
  if (ungated.has(request.call)) return answer(caller, request);
  const { promise: answered, resolve, reject } = Promise.withResolvers<Answer>();
  const inside = gate.pass(async () => {
    if (!isWanted())
      throw new CriError("CANCELLED", `${request.call} was cancelled before it began`);
    resolve(await answer(caller, request));
    // The next build would know nothing of a container that this one holds.
    if (request.call === "create")
      await containers.starts.ended((request.params as StartRequest).id);
  });
  inside.catch(reject);
  return answered;
}

type Handlers = {
  [Name in keyof Calls]: (parts: Caller, params: Calls[Name][0]) => HandlerResult<Calls[Name][1]>;
};
type HandlerResult<Result> = Answer<Result> | Promise<Answer<Result>> | Promise<void> | void;

/** A handler without a result answers {}. */
const handlers: Handlers = {
  hello: ({ containers: { running, starts, exits } }) => ({
    result: {
      pid: process.pid,
      version,
      executable,
      running,
      starting: starts.ids,
      exits: exits.all,
    },
  }),
  ping: () => {},
  inspect: async (parts) => ({ result: await (await import("./inspect.ts")).inspect(parts) }),
  start: async ({ containers }, params) => ({
    result: await withRuntimeTimes(() => containers.start(params)),
  }),
  create: async ({ containers, gone }, params) => ({
    result: await withRuntimeTimes(() => containers.create(params, gone)),
  }),
  startCreated: async ({ containers }, params) => ({
    result: await withRuntimeTimes(() => containers.startCreated(params)),
  }),
  awaitStart: async ({ containers }, { id }) => ({ result: await containers.awaitStart(id) }),
  cancelStart: ({ containers }, { id }) => containers.cancelStart(id),
  adopt: ({ containers }, params) => containers.adopt(params),
  exec,
  startExec: async (parts, params) => ({
    result: await parts.execs.start(running(parts, params.id), params),
  }),
  waitExec: async ({ execs }, { key }) => ({ result: await execs.wait(key) }),
  endExec: (parts, params) => {
    return parts.containers.runtimes.endExec(running(parts, params.id), params);
  },
  attach: (parts, params) => {
    running(parts, params.id);
    return parts.workers.attach(params);
  },
  closeStdin: ({ containers }, params) => containers.closeStdin(params),
  cancelExec: ({ execs }, { key }) => execs.cancel(key),
  kill: async ({ containers }, { id, signal }) => ({
    result: { running: await containers.kill(id, signal) },
  }),
  watchLogs: ({ workers, gone, send }) => {
    workers.watch((logs) => send({ event: "logs", logs }), gone);
    return { result: workers.state };
  },
  reopenLog: (parts, { id }) => {
    running(parts, id);
    return parts.workers.reopen(id);
  },
  task,
  remove: ({ containers }, params) => containers.remove(params),
  lendTerminal: ({ containers }, { id, path }) => containers.lendTerminal(id, path),
  awaitTerminal: ({ containers }, { id }) => ({ result: { path: containers.awaitTerminal(id) } }),
  takeTerminal: ({ containers }, { id }) => containers.takeTerminal(id),
  upgrade: (parts, { argv }) => upgrade(argv, parts),
};

async function answer(caller: Caller, { call, params }: RequestHeader): Promise<Answer> {
  // A newer daemon may have further calls.
  if (!Object.hasOwn(handlers, call)) {
    throw new CriError("UNIMPLEMENTED", `the monitor has no call ${call}`);
  }
  const handler = handlers[call] as (caller: Caller, params: unknown) => unknown;
  return ((await handler(caller, params)) as Answer | undefined) ?? { result: {} };
}

/** @throws CriError FAILED_PRECONDITION. */
function running(parts: Parts, id: string): RunRecord {
  const found = parts.containers.find(id);
  if (found !== undefined) return found;
  throw new CriError("FAILED_PRECONDITION", `container ${id} is not running`);
}

async function exec(parts: Caller, request: Calls["exec"][0]): Promise<Answer<Calls["exec"][1]>> {
  const container = running(parts, request.id);
  const { result, stdout, stderr } = await parts.execs.run(container, request);
  // Nobody else removes the file of a daemon that has ended.
  if (parts.gone.aborted && result.inFile !== undefined)
    rmSync(request.outputFile!, { force: true });
  return { result, body: [stdout, stderr] };
}

async function task(parts: Parts, request: TaskRequest): Promise<Answer<Record<string, never>>> {
  const { id, method, payload, timeoutMs } = request;
  running(parts, id);
  const client = await (await parts.containers.runtimes.shims()).clientOf(id, timeoutMs);
  const answer = await client.call(method, Buffer.from(payload, "base64"), timeoutMs);
  return { result: {}, body: [answer] };
}
