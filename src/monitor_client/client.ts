// Connects the daemon to its monitor: finds the running one or starts one, upgrades one of another build, and
// reconnects when it has ended. connection.ts decides, this file carries it out.
import type { Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { executableId } from "../base/build.ts";
import { activity } from "../base/activity.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { kill } from "../sys/process.ts";
import {
  search,
  searchFailed,
  socketClosed,
  startIfDue,
  unanswered,
  upgrade,
  type Connection,
  type Searching,
  type Unanswered,
} from "./connection.ts";
import { dial } from "./dial.ts";
import { heartbeat } from "./heartbeat.ts";
import { StdioKeepalive } from "./stdio_keepalive.ts";
import {
  readFrames,
  type AdoptRequest,
  type Calls,
  type EventHeader,
  type ExitRecord,
  type Hello,
  type LogState,
  type ReplyHeader,
  type StartRequest,
} from "../monitor/protocol.ts";
import { monitorLogFile } from "../monitor/monitor_log_file.ts";
import { hasTerminal } from "../monitor/stdio.ts";
import { reportRuntimeTimes } from "./runtime_times.ts";
import { Starter } from "./starter.ts";
import { KeptTerminals } from "./kept_terminals.ts";
import { PendingCalls, type Reply } from "./pending_calls.ts";

/** Read at the start: the file may be replaced later. */
const executable = executableId();

type Greeted = { socket: Socket; hello: Hello };

/** Between two attempts of a search. */
const retryMs = 20;
/** For the greeting alone: longer than a monitor that is being upgraded holds calls up. */
const helloMs = 15_000;
/** For an upgrade: longer than the monitor takes to give one up (monitor/upgrade.ts). */
const upgradeMs = 40_000;
/** Between two searches after a loss. */
const searchAgainMs = 1_000;

export class MonitorClient implements AsyncDisposable {
  readonly #state: string;
  /** The monitor's socket. */
  readonly #path: string;
  /** Program and arguments that run this same executable. */
  readonly #program: string[];
  readonly #log: Log;
  readonly #starter: Starter;
  readonly #onExit: (exit: ExitRecord) => void;
  readonly #onHello: (hello: Hello) => Promise<void> | void;
  readonly #onLogs: (logs: LogState) => void;
  readonly #calls = new PendingCalls();
  readonly #stdio = new StdioKeepalive();
  readonly #terminals: KeptTerminals;
  /** Containers whose start has not been answered and whose exit has not been announced. */
  readonly #starting = new Set<string>();
  #connection: Connection<Socket> = { state: "disconnected" };
  /** The search under way; callers share it. */
  #connecting: Promise<Socket> | undefined;
  /** onHello's end, for the latest monitor. */
  #greeted: Promise<void> | undefined;
  #losses = 0;
  #logs: LogState = { troubles: [], droppedBytes: 0 };
  #upgradeTried = false;

  constructor(options: {
    state: string;
    program: string[];
    log: Log;
    onExit: (exit: ExitRecord) => void;
    /** Called for each new connection, with the running containers and those that ended meanwhile. */
    onHello: (hello: Hello) => Promise<void> | void;
    /** Called when a log of a container cannot be written, and when that changes. */
    onLogs?: (logs: LogState) => void;
  }) {
    this.#state = options.state;
    this.#path = join(options.state, "monitor", "socket");
    this.#terminals = new KeptTerminals(join(options.state, "tty"));
    this.#program = options.program;
    this.#log = options.log;
    this.#starter = new Starter(options);
    this.#onExit = options.onExit;
    this.#onHello = options.onHello;
    this.#onLogs = options.onLogs ?? (() => {});
  }

  /** The serving monitor's; undefined while there is none. */
  get pid(): number | undefined {
    return this.#connection.state === "connected" ? this.#connection.pid : undefined;
  }

  get #isClosed(): boolean {
    return this.#connection.state === "closed";
  }

  /** The number of calls that the monitor has not answered yet. */
  get pending(): number {
    return this.#calls.count;
  }

  /** How often a serving monitor has ended. */
  get losses(): number {
    return this.#losses;
  }

  /** The logs that the serving monitor cannot write. */
  get logs(): LogState {
    return this.#logs;
  }

  startEarly(): void {
    this.#starter.startEarly();
  }

  /**
   * Finds or starts the monitor, and returns when onHello has handled its greeting.
   * @throws CriError UNAVAILABLE when it does not answer.
   */
  async connect(): Promise<void> {
    await this.#connected();
    await this.#greeted;
  }

  call<Name extends keyof Calls>(
    call: Name,
    params: Calls[Name][0],
  ): Promise<{ result: Calls[Name][1]; body: Buffer }> {
    return activity("monitor", { call }, async () => {
      const socket = await this.#connected();
      const sent = this.#calls.send(socket, call, params);
      const isStart = call === "start" || call === "startCreated";
      const reply = await (isStart ? this.#start(params as StartRequest, sent) : sent);
      if (call === "remove") this.#release((params as Calls["remove"][0]).id);
      reportRuntimeTimes((reply.result as Calls["start"][1]).tookMs);
      return { result: reply.result as Calls[Name][1], body: reply.body };
    });
  }

  /** Gives the monitor a running container that it does not know, and its terminal. */
  async adopt(request: AdoptRequest): Promise<void> {
    const socket = await this.#connected();
    await this.#start(request, this.#calls.send(socket, "adopt", request), { terminalHeld: false });
  }

  /** Returns a descriptor of a container's terminal; the caller closes it. @throws if it has ended. */
  async terminal(id: string): Promise<Descriptor> {
    const socket = await this.#connected();
    const terminal = await this.#terminals.borrow(id, this.#caller(socket));
    if (terminal !== undefined) return terminal.duplicate();
    const message = `container ${id} has ended, and its terminal with it`;
    throw new CriError("FAILED_PRECONDITION", message);
  }

  /** Ends the container's stdin for good. */
  async closeStdin(id: string): Promise<void> {
    this.#stdio.closeStdin(id); // first: some shims wait for the end of the input
    await this.call("closeStdin", { id });
  }

  async #start(
    request: StartRequest,
    sent: Promise<Reply>,
    { terminalHeld }: { terminalHeld?: boolean } = {},
  ): Promise<Reply> {
    this.#starting.add(request.id);
    try {
      const reply = await sent;
      const terminal = hasTerminal(request);
      if (this.#starting.has(request.id)) this.#stdio.hold({ ...request, terminal });
      if (terminal && this.#connection.state === "connected") {
        this.#keepTerminal(this.#connection.socket, { id: request.id, terminalHeld });
      }
      return reply;
    } finally {
      this.#starting.delete(request.id);
    }
  }

  /**
   * Keeps the terminals of the running containers, or gives them to a monitor that has lost them. Streams of
   * containers that it does not know stay open: those are adopted or removed.
   */
  #keepTerminals(socket: Socket, { running, exits }: Hello): void {
    for (const { id } of exits) this.#release(id);
    for (const { id, terminal, terminalHeld } of running) {
      if (terminal) this.#keepTerminal(socket, { id, terminalHeld });
    }
  }

  #release(id: string): void {
    this.#stdio.release(id);
    this.#terminals.release(id);
  }

  #keepTerminal(
    socket: Socket,
    { id, terminalHeld = true }: { id: string; terminalHeld?: boolean },
  ): void {
    const call = this.#caller(socket);
    const kept: Promise<unknown> = terminalHeld
      ? this.#terminals.borrow(id, call)
      : this.#terminals.giveBack(id, call);
    kept.catch((error: unknown) => {
      const fields = { container: id, error: messageOf(error) };
      this.#log.warn("keeping a terminal for the next monitor failed", fields);
    });
  }

  #caller(socket: Socket) {
    return async <Name extends keyof Calls>(name: Name, params: Calls[Name][0]) =>
      (await this.#calls.send(socket, name, params)).result as Calls[Name][1];
  }

  #exited(exit: ExitRecord): void {
    this.#starting.delete(exit.id);
    this.#release(exit.id);
    this.#onExit(exit);
  }

  #connected(): Promise<Socket> {
    switch (this.#connection.state) {
      case "connected":
        return Promise.resolve(this.#connection.socket);
      case "closed":
        return Promise.reject(closedError());
      case "disconnected":
      case "searching":
        this.#connecting ??= this.#search().finally(() => (this.#connecting = undefined));
        return this.#connecting;
    }
  }

  async #search(): Promise<Socket> {
    this.#connection = search(performance.now(), this.#starter.beginSearch());
    try {
      for (;;) {
        const found = await this.#dialAndGreet();
        if (typeof found === "string") await this.#retry(found);
        else if (await this.#isToServe(found)) return this.#serve(found);
      }
    } catch (error) {
      this.#connection = searchFailed(this.#connection);
      throw error;
    }
  }

  /** @throws CriError UNAVAILABLE when this object was closed meanwhile. */
  #searching(): Searching {
    const connection = this.#connection;
    if (connection.state === "searching") return connection;
    throw closedError();
  }

  /** A monitor that is ending may still take a connection: only its greeting counts. */
  async #dialAndGreet(): Promise<Greeted | Unanswered> {
    const socket = await dial(this.#path);
    const hello = socket && (await this.#greet(socket));
    if (hello === undefined || hello === "silent") return hello ?? "none";
    return { socket: socket!, hello };
  }

  /** Kills the monitors that do not serve, and starts another, where that is due. */
  async #retry(outcome: Unanswered): Promise<void> {
    const verdict = unanswered(this.#searching(), outcome, performance.now());
    if (verdict.do === "fail") {
      const log = monitorLogFile(this.#state);
      const message = `the monitor does not answer on ${this.#path}: see ${log}`;
      throw new CriError("UNAVAILABLE", message);
    }
    if (verdict.oust !== undefined) {
      const failed = logFailure(this.#log, "killing monitors that do not serve failed");
      await this.#starter.oust(verdict.oust).catch(failed);
      this.#searching(); // it may have been closed meanwhile
    }
    const start = () => this.#starter.start();
    this.#connection = startIfDue(verdict.next, performance.now(), start);
    await sleep(retryMs);
  }

  /** Decides whether this monitor serves; false: it is becoming this build, and its next greeting counts. */
  async #isToServe({ socket, hello }: Greeted): Promise<boolean> {
    // Before an upgrade: the descriptors that the monitor itself has of the streams end with its program.
    for (const container of hello.running) this.#stdio.hold(container);
    if (hello.executable === executable || this.#upgradeTried || this.#isClosed) return true;
    this.#upgradeTried = true;
    const hasEnded = this.#starter.endOf(hello.pid);
    this.#connection = upgrade(this.#searching(), performance.now(), hasEnded);
    if (!(await this.#upgrade(socket, hello))) return true;
    this.#connection = upgrade(this.#searching(), performance.now(), hasEnded);
    return false;
  }

  #serve({ socket, hello }: Greeted): Socket {
    const { pid, version } = hello;
    if (this.#isClosed) {
      socket.destroy();
      throw closedError();
    }
    this.#log.debug("monitor found", { pid, version });
    this.#starter
      .killOthers(pid)
      .catch(logFailure(this.#log, "killing monitors that do not serve failed"));
    this.#connection = { state: "connected", socket, pid };
    this.#watch(socket, pid);
    this.#keepTerminals(socket, hello);
    this.#greeted = Promise.resolve(this.#onHello(hello));
    this.#watchLogs(socket).catch(logFailure(this.#log, "asking for failing logs failed"));
    return socket;
  }

  /** Kills a monitor that stops answering: its containers go on, and the next monitor adopts them. */
  #watch(socket: Socket, pid: number): void {
    const beat = heartbeat(
      () => this.#calls.send(socket, "ping", {}),
      () => {
        this.#log.error("the monitor does not answer: killing it and starting another", { pid });
        kill(pid); // its socket is open, so the pid has not been reused
        socket.destroy();
      },
    );
    socket.on("close", () => beat[Symbol.dispose]());
  }

  /** undefined: the connection closed before the greeting. */
  async #greet(socket: Socket): Promise<Hello | "silent" | undefined> {
    this.#attach(socket);
    let silent = false;
    const late = setTimeout(() => {
      silent = true;
      socket.destroy();
    }, helloMs);
    try {
      return (await this.#calls.send(socket, "hello", {})).result as Hello;
    } catch {
      return silent ? "silent" : undefined;
    } finally {
      clearTimeout(late);
    }
  }

  /** Asks a monitor of another build to become this one; true when it has dropped the connection to do so. */
  async #upgrade(socket: Socket, { pid, executable: from }: Hello): Promise<boolean> {
    this.#log.info("upgrading the monitor", { pid, from, to: executable });
    const late = setTimeout(() => socket.destroy(), upgradeMs);
    try {
      await this.#calls.send(socket, "upgrade", { argv: this.#program });
    } catch (error) {
      if (socket.destroyed) return true; // the next greeting tells the outcome; a silent monitor is killed
      const failed = "the monitor was not upgraded and serves as its old build";
      const next = "the daemon's next start tries again";
      this.#log.error(`${failed}; ${next}`, { pid, error: messageOf(error) });
    } finally {
      clearTimeout(late);
    }
    return false;
  }

  #attach(socket: Socket): void {
    socket.on("error", (error) => this.#log.debug("monitor connection", { error: error.message }));
    socket.on("close", () => {
      this.#calls.fail();
      const connection = socketClosed(this.#connection, socket);
      if (connection === this.#connection) return;
      this.#connection = connection;
      this.#losses++;
      this.#log.warn("the monitor has ended, starting another");
      this.#reconnect().catch(logFailure(this.#log, "reconnecting to a monitor failed"));
    });
    readFrames(socket, (header, body) => {
      if ("event" in header) this.#event(header as EventHeader);
      else this.#calls.settle(header as ReplyHeader, body);
    });
  }

  #event(header: EventHeader): void {
    if (header.event === "exit") this.#exited(header.exit);
    if (header.event === "logs") this.#logsChanged(header.logs);
  }

  async #watchLogs(socket: Socket): Promise<void> {
    try {
      this.#logsChanged(await this.#caller(socket)("watchLogs", {}));
    } catch (error) {
      // An older monitor has no such call; one that has ended is replaced.
      if (codeOf(error) !== "UNIMPLEMENTED" && codeOf(error) !== "UNAVAILABLE") throw error;
    }
  }

  #logsChanged(logs: LogState): void {
    this.#logs = logs;
    this.#onLogs(logs);
  }

  async #reconnect(): Promise<void> {
    while (!this.#isClosed) {
      try {
        await this.#connected();
        return;
      } catch (error) {
        const fields = { error: messageOf(error), retryMs: searchAgainMs };
        this.#log.error("no monitor serves, retrying", fields);
        await sleep(searchAgainMs);
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const connection = this.#connection;
    this.#connection = { state: "closed" };
    await this.#connecting?.catch(() => {});
    if (connection.state === "connected") connection.socket.destroy();
  }
}

function closedError(): CriError {
  const message = "the daemon ends and has closed its connection to the monitor";
  return new CriError("UNAVAILABLE", message);
}
