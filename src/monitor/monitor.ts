// The monitor: one process a node, subreaper and parent of every container, which outlives the
// daemon. Here is its main loop: the socket, SIGCHLD, and when it ends.
import { EventEmitter } from "node:events";
import type { Socket } from "node:net";
import { join } from "node:path";
import { executableId, version } from "../base/build.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { Orphans, orphanScanMs } from "../sys/orphans.ts";
import { becomeSubreaper } from "../sys/wait.ts";
import { shrinkWhenIdle } from "../sys/memory.ts";
import { Containers } from "./containers.ts";
import { endExec, Execs } from "./exec.ts";
import { boundOwnLog } from "./own_log.ts";
import { Place } from "./place.ts";
import { readFrames, writeFrame, type Calls, type RequestHeader } from "./protocol.ts";
import { RecordFolder } from "./records.ts";
import { Spawner } from "./spawner.ts";
import { Gate, upgrade, type Inherited } from "./upgrade.ts";
import { LogWorkers } from "./worker_client.ts";

/** Nobody connected and nothing runs: after this the monitor ends. */
const idleMs = 3_000;
/** At the start: the file may be another one later. */
const executable = executableId();

type Parts = {
  state: string;
  place: Place;
  containers: Containers;
  execs: Execs;
  workers: LogWorkers;
  gate: Gate;
};
type Answer = { result: unknown; body?: Uint8Array[] };

/** Runs the monitor on `<state>/monitor`; returns when it is no longer needed. */
export async function monitorMain(state: string, inherited: Inherited, log: Log): Promise<void> {
  const folder = join(state, "monitor");
  const connections = new Set<Socket>();
  const onConnection = (socket: Socket) => {
    connections.add(socket);
    socket.on("close", () => connections.delete(socket));
    serve(socket, parts, log, () => activity++);
  };
  const place = await Place.take({ folder, lockFd: inherited.lockFd, onConnection });
  if (place === undefined) return log.info("another monitor is there or ending");
  becomeSubreaper();
  let activity = 0;
  const workers = new LogWorkers((error) => {
    log.error("log worker failed", { error: messageOf(error) });
    process.exit(1); // The daemon starts another, which resumes the logs.
  });
  const spawner = new Spawner(folder);
  const records = new RecordFolder(folder);
  const containers = new Containers({
    folder,
    workers,
    spawner,
    log,
    announce: (exit) =>
      connections.forEach((socket) => writeFrame(socket, { event: "exit", exit })),
  });
  const execs = new Execs({ folder, workers, spawner });
  const parts: Parts = { state, place, containers, execs, workers, gate: new Gate() };
  await containers.resume(inherited.terminals);
  const check = () => {
    containers.check();
    execs.check();
  };
  process.on("SIGCHLD", check);
  const signalled = endingSignals();
  await place.listen();
  log.info("monitor ready", { pid: process.pid, containers: containers.running.length });
  using _ = shrinkWhenIdle(() => ({ count: activity, goesOn: false }));
  const orphans = new Orphans();
  await untilIdle(signalled, () => {
    check();
    records.keepFolders();
    void keepPlace(parts, log);
    const known = new Set([...containers.pids, ...execs.pids]);
    orphans.reap((pid) => known.has(pid), spawner.startingSince);
    if (containers.running.length > 0 || spawner.busy) return "busy";
    return connections.size > 0 ? "connected" : "idle";
  });
  await place.leave();
}

/** Ends this process when another monitor has its place: the daemon gives that one the containers. */
async function keepPlace({ state, place, containers, gate }: Parts, log: Log): Promise<void> {
  try {
    boundOwnLog(state);
    // Not amid an upgrade, which passes the lock on.
    const kept = await gate.pass(() => place.keep());
    if (kept === "lost") {
      log.error("ending: another monitor has the state folder");
      process.exit(1);
    }
    if (kept === "kept") return;
    log.error("the folder was removed and is made again");
    containers.rewrite();
  } catch (error) {
    log.error("the state folder is not kept", { error: messageOf(error) });
  }
}

/** A signal ends a monitor that has no container; with containers it is needed, and stays. */
function endingSignals(): EventEmitter {
  const signalled = new EventEmitter();
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(signal, () => signalled.emit("end"));
  }
  return signalled;
}

function untilIdle(
  signalled: EventEmitter,
  state: () => "busy" | "connected" | "idle",
): Promise<void> {
  return new Promise((resolve) => {
    let idle = 0;
    const end = () => {
      clearInterval(timer);
      resolve();
    };
    const timer = setInterval(() => {
      idle = state() === "idle" ? idle + orphanScanMs : 0;
      if (idle >= idleMs) end();
    }, orphanScanMs);
    signalled.on("end", () => {
      if (state() !== "busy") end();
    });
  });
}

function serve(socket: Socket, parts: Parts, log: Log, onWork: () => void): void {
  /** Execs that this connection waits for; nobody else will take their results. */
  const execs = new Set<string>();
  socket.on("error", (error) => log.warn("connection failed", { error: error.message }));
  socket.on("close", () => execs.forEach((key) => parts.execs.abandon(key)));
  readFrames(socket, (header) => {
    const request = header as unknown as RequestHeader;
    const { call } = request;
    const { key = "" } = request.params as { key?: string };
    if (call !== "ping") onWork();
    if (call === "exec" || call === "startExec") execs.add(key);
    const answered = admit(parts, request).then(({ result, body }) => {
      if (call === "exec" || call === "waitExec") execs.delete(key);
      // One that was started for somebody who has gone meanwhile.
      if (call === "startExec" && socket.destroyed) parts.execs.abandon(key);
      writeFrame(socket, { seq: request.seq, result }, body);
    });
    answered.catch((error: unknown) => {
      if (call !== "cancelExec") execs.delete(key);
      const failure = { code: codeOf(error), message: messageOf(error) };
      if (call === "upgrade") log.error("not upgraded", { error: failure.message });
      writeFrame(socket, { seq: request.seq, error: failure });
    });
  });
}

const ungated: ReadonlySet<keyof Calls> = new Set(["upgrade", "cancelExec", "ping"]);

/** Calls wait while the monitor is about to be replaced; one that ends an exec is what it waits for. */
function admit(parts: Parts, request: RequestHeader): Promise<Answer> {
  if (ungated.has(request.call)) return answer(parts, request);
  return parts.gate.pass(() => answer(parts, request));
}

async function answer(parts: Parts, request: RequestHeader): Promise<Answer> {
  const { containers } = parts;
  switch (request.call) {
    case "hello": {
      const result: Calls["hello"][1] = {
        pid: process.pid,
        version,
        executable,
        running: containers.running,
        exits: containers.exits,
      };
      return { result };
    }
    case "ping":
      return { result: {} };
    case "start":
      return { result: await containers.start(request.params as Calls["start"][0]) };
    case "adopt":
      await containers.adopt(request.params as Calls["adopt"][0]);
      return { result: {} };
    case "exec":
      return exec(parts, request.params as Calls["exec"][0]);
    case "startExec": {
      const params = request.params as Calls["startExec"][0];
      return { result: await parts.execs.start(running(parts, params.id), params) };
    }
    case "waitExec":
      return { result: await parts.execs.wait((request.params as Calls["waitExec"][0]).key) };
    case "endExec": {
      const params = request.params as Calls["endExec"][0];
      endExec(params, running(parts, params.id).cgroup);
      return { result: {} };
    }
    case "attach": {
      const params = request.params as Calls["attach"][0];
      running(parts, params.id);
      await parts.workers.attach(params);
      return { result: {} };
    }
    case "closeStdin":
      containers.closeStdin((request.params as Calls["closeStdin"][0]).id);
      return { result: {} };
    case "cancelExec":
      parts.execs.cancel((request.params as Calls["cancelExec"][0]).key);
      return { result: {} };
    case "kill": {
      const { id, signal } = request.params as Calls["kill"][0];
      return { result: { running: containers.kill(id, signal) } };
    }
    case "reopenLog":
      await containers.reopenLog((request.params as Calls["reopenLog"][0]).id);
      return { result: {} };
    case "remove":
      await containers.remove(request.params as Calls["remove"][0]);
      return { result: {} };
    case "lendTerminal": {
      const { id, path } = request.params as Calls["lendTerminal"][0];
      containers.lendTerminal(id, path);
      return { result: {} };
    }
    case "awaitTerminal": {
      const { id } = request.params as Calls["awaitTerminal"][0];
      return { result: { path: containers.awaitTerminal(id) } };
    }
    case "takeTerminal":
      containers.takeTerminal((request.params as Calls["takeTerminal"][0]).id);
      return { result: {} };
    case "upgrade":
      return upgrade((request.params as Calls["upgrade"][0]).argv, parts);
  }
  const { call }: { call: string } = request; // a newer daemon's
  throw new CriError("UNIMPLEMENTED", `the monitor has no call ${call}`);
}

/** @throws CriError FAILED_PRECONDITION. */
function running(parts: Parts, id: string): NonNullable<ReturnType<Containers["find"]>> {
  const found = parts.containers.find(id);
  if (found !== undefined) return found;
  throw new CriError("FAILED_PRECONDITION", `container ${id} is not running`);
}

async function exec(parts: Parts, request: Calls["exec"][0]): Promise<Answer> {
  const container = running(parts, request.id);
  const { result, stdout, stderr } = await parts.execs.run(container, request);
  return { result, body: [stdout, stderr] };
}
