// The monitor: one process a node, subreaper and parent of every container, which outlives the
// daemon. Here is its main loop: the socket, SIGCHLD, and when it ends.
import { mkdir, rm } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { join } from "node:path";
import { version } from "../base/build.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { becomeSubreaper } from "../sys/wait.ts";
import { Orphans, orphanScanMs } from "../sys/orphans.ts";
import { Containers } from "./containers.ts";
import { Execs } from "./exec.ts";
import { readFrames, writeFrame, type Calls, type RequestHeader } from "./protocol.ts";
import { Spawner } from "./spawner.ts";
import { LogWorkers } from "./worker_client.ts";

/** Nobody connected and nothing runs: after this the monitor ends. */
const idleMs = 3_000;

type Parts = { containers: Containers; execs: Execs };
type Answer = { result: unknown; body?: Uint8Array[] };

/** Runs the monitor on `<state>/monitor`; returns when it is no longer needed. */
export async function monitorMain(state: string, log: Log): Promise<void> {
  const folder = join(state, "monitor");
  await mkdir(folder, { recursive: true, mode: 0o700 });
  becomeSubreaper();
  const connections = new Set<Socket>();
  const workers = new LogWorkers((error) => {
    log.error("log worker failed", { error: messageOf(error) });
    process.exit(1); // The daemon starts another, which resumes the logs.
  });
  const spawner = new Spawner(folder);
  const containers = new Containers({
    folder,
    workers,
    spawner,
    log,
    announce: (exit) =>
      connections.forEach((socket) => writeFrame(socket, { event: "exit", exit })),
  });
  const execs = new Execs({ folder, workers, spawner });
  const parts: Parts = { containers, execs };
  await containers.resume();
  const check = () => {
    containers.check();
    execs.check();
  };
  process.on("SIGCHLD", check);
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => {});
  await listen(join(folder, "socket"), (socket) => {
    connections.add(socket);
    socket.on("close", () => connections.delete(socket));
    serve(socket, parts, log);
  });
  log.info("monitor ready", { pid: process.pid, containers: containers.running.length });
  const orphans = new Orphans();
  await untilIdle(() => {
    check();
    const known = new Set([...containers.pids, ...execs.pids]);
    orphans.reap((pid) => known.has(pid) || spawner.busy);
    return connections.size === 0 && containers.running.length === 0;
  });
  await rm(join(folder, "socket"), { force: true });
}

async function listen(path: string, onConnection: (socket: Socket) => void): Promise<void> {
  await rm(path, { force: true });
  const server = createServer(onConnection);
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(path, resolve);
  });
}

function untilIdle(isIdle: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    let idle = 0;
    const timer = setInterval(() => {
      idle = isIdle() ? idle + orphanScanMs : 0;
      if (idle < idleMs) return;
      clearInterval(timer);
      resolve();
    }, orphanScanMs);
  });
}

function serve(socket: Socket, parts: Parts, log: Log): void {
  socket.on("error", (error) => log.warn("connection failed", { error: error.message }));
  readFrames(socket, (header) => {
    const request = header as unknown as RequestHeader;
    answer(parts, request).then(
      ({ result, body }) => writeFrame(socket, { seq: request.seq, result }, body),
      (error: unknown) => {
        const failure = { code: codeOf(error), message: messageOf(error) };
        writeFrame(socket, { seq: request.seq, error: failure });
      },
    );
  });
}

async function answer(parts: Parts, request: RequestHeader): Promise<Answer> {
  const { containers } = parts;
  switch (request.call) {
    case "hello": {
      const result: Calls["hello"][1] = {
        pid: process.pid,
        version,
        running: containers.running,
        exits: containers.exits,
      };
      return { result };
    }
    case "start":
      return { result: await containers.start(request.params as Calls["start"][0]) };
    case "exec":
      return exec(parts, request.params as Calls["exec"][0]);
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
  }
  throw new CriError("UNIMPLEMENTED", `the monitor has no call ${String(request.call)}`);
}

async function exec(parts: Parts, request: Calls["exec"][0]): Promise<Answer> {
  const running = parts.containers.find(request.id);
  if (running === undefined) {
    throw new CriError("FAILED_PRECONDITION", `container ${request.id} is not running`);
  }
  const { result, stdout, stderr } = await parts.execs.run(running, request);
  return { result, body: [stdout, stderr] };
}
