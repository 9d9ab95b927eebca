// The daemon's side of the monitor: starts it when there is none, finds it again when there is,
// and connects anew when it was replaced.
import { createConnection, type Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { executableId } from "../base/build.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { kill } from "../sys/process.ts";
import { heartbeat } from "./heartbeat.ts";
import { StdioKeepalive } from "./stdio_keepalive.ts";
import {
  readFrames,
  writeFrame,
  type AdoptRequest,
  type Calls,
  type EventHeader,
  type ExitRecord,
  type Hello,
  type ReplyHeader,
  type StartRequest,
} from "../monitor/protocol.ts";
import { monitorLogFile } from "../monitor/monitor_log_file.ts";
import { Starter } from "./starter.ts";
import { KeptTerminals } from "./kept_terminals.ts";

/** At the start: the file may be another one later. */
const executable = executableId();

type Reply = { result: unknown; body: Buffer };

/** From the start of a monitor to its first answer; a node that has much to do takes its time. */
const startMs = 30_000;
const retryMs = 20;
/** For the greeting alone: longer than one that is being upgraded lets calls wait. */
const helloMs = 15_000;
/** For an upgrade: longer than the monitor takes to give one up (upgrade.ts). */
const upgradeMs = 40_000;
/** When none answered. */
const retryLaterMs = 1_000;

export class MonitorClient implements AsyncDisposable {
  readonly #state: string;
  /** Program and arguments that run this same executable. */
  readonly #program: string[];
  readonly #log: Log;
  readonly #starter: Starter;
  readonly #onExit: (exit: ExitRecord) => void;
  readonly #onHello: (hello: Hello) => Promise<void> | void;
  readonly #waiting = new Map<number, PromiseWithResolvers<Reply>>();
  readonly #held = new StdioKeepalive();
  readonly #terminals: KeptTerminals;
  /** Containers whose start has not been answered and whose exit has not been told. */
  readonly #starting = new Set<string>();
  #socket: Socket | undefined;
  #connecting: Promise<Socket> | undefined;
  #greeted: Promise<void> | undefined;
  #seq = 0;
  #pid: number | undefined;
  #losses = 0;
  #closed = false;
  #upgradeTried = false;

  constructor(options: {
    state: string;
    program: string[];
    log: Log;
    onExit: (exit: ExitRecord) => void;
    /** After every connection: what runs, and what ended while nobody listened. */
    onHello: (hello: Hello) => Promise<void> | void;
  }) {
    this.#state = options.state;
    this.#terminals = new KeptTerminals(join(options.state, "monitor"));
    this.#program = options.program;
    this.#log = options.log;
    this.#starter = new Starter(options);
    this.#onExit = options.onExit;
    this.#onHello = options.onHello;
  }

  /** Of the monitor, while there is one. */
  get pid(): number | undefined {
    return this.#pid;
  }

  /** How often a monitor was gone, so that another one had to be. */
  get losses(): number {
    return this.#losses;
  }

  /**
   * Finds or starts the monitor, and returns when onHello has dealt with its greeting.
   * @throws CriError UNAVAILABLE when it does not answer.
   */
  async connect(): Promise<void> {
    await this.#connected();
    await this.#greeted;
  }

  async call<Name extends keyof Calls>(
    call: Name,
    params: Calls[Name][0],
  ): Promise<{ result: Calls[Name][1]; body: Buffer }> {
    const socket = await this.#connected();
    const sent = this.#send(socket, call, params);
    const reply = await (call === "start" ? this.#start(params as StartRequest, sent) : sent);
    if (call === "remove") this.#release((params as Calls["remove"][0]).id);
    return { result: reply.result as Calls[Name][1], body: reply.body };
  }

  /** Gives the monitor a container that runs and that it does not know, with what is held of it. */
  async adopt(request: AdoptRequest): Promise<void> {
    const socket = await this.#connected();
    await this.#start(request, this.#send(socket, "adopt", request), { terminalHeld: false });
  }

  /** A descriptor of a running container's terminal, the caller's to close. @throws when there is none. */
  async terminal(id: string): Promise<Descriptor> {
    const socket = await this.#connected();
    const terminal = await this.#terminals.borrow(id, this.#caller(socket));
    if (terminal !== undefined) return terminal.duplicate();
    throw new CriError(
      "FAILED_PRECONDITION",
      `container ${id} has ended, and its terminal with it`,
    );
  }

  /** What the container reads ends, for good. */
  async closeStdin(id: string): Promise<void> {
    await this.call("closeStdin", { id });
    this.#held.closeStdin(id);
  }

  async #start(
    request: StartRequest,
    sent: Promise<Reply>,
    { terminalHeld }: { terminalHeld?: boolean } = {},
  ): Promise<Reply> {
    this.#starting.add(request.id);
    try {
      const reply = await sent;
      if (this.#starting.has(request.id)) this.#held.hold(request);
      if (request.terminal && this.#socket !== undefined) {
        this.#keepTerminal(this.#socket, { id: request.id, terminalHeld });
      }
      return reply;
    } finally {
      this.#starting.delete(request.id);
    }
  }

  /**
   * The terminals of what runs are kept, or given to a monitor that lacks them. What it does not know stays
   * held: it is adopted or removed.
   */
  #takeOver(socket: Socket, { running, exits }: Hello): void {
    for (const { id } of exits) this.#release(id);
    for (const { id, terminal, terminalHeld } of running) {
      if (terminal) this.#keepTerminal(socket, { id, terminalHeld });
    }
  }

  #release(id: string): void {
    this.#held.release(id);
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
      this.#log.warn("a terminal is not kept", { container: id, error: messageOf(error) });
    });
  }

  #caller(socket: Socket) {
    return async <Name extends keyof Calls>(name: Name, params: Calls[Name][0]) =>
      (await this.#send(socket, name, params)).result as Calls[Name][1];
  }

  #exited(exit: ExitRecord): void {
    this.#starting.delete(exit.id);
    this.#release(exit.id);
    this.#onExit(exit);
  }

  #send(socket: Socket, call: keyof Calls, params: unknown): Promise<Reply> {
    const seq = ++this.#seq;
    const waiting = Promise.withResolvers<Reply>();
    this.#waiting.set(seq, waiting);
    try {
      writeFrame(socket, { call, seq, params });
    } catch (error) {
      this.#waiting.delete(seq);
      waiting.reject(error);
    }
    return waiting.promise;
  }

  #connected(): Promise<Socket> {
    if (this.#socket !== undefined) return Promise.resolve(this.#socket);
    this.#connecting ??= this.#open().finally(() => (this.#connecting = undefined));
    return this.#connecting;
  }

  /**
   * A monitor that is ending may still take a connection: only its hello counts. One that gives none, and
   * one that lets no other take its place, is killed.
   */
  async #open(): Promise<Socket> {
    const path = join(this.#state, "monitor", "socket");
    let deadline = performance.now() + startMs;
    let ousted = false;
    this.#starter.begin();
    for (;;) {
      const socket = await dial(path);
      const hello = socket && (await this.#greet(socket));
      const silent = hello === "silent";
      if (hello !== undefined && !silent) {
        // Before an upgrade: what the monitor itself has open of the streams goes with its program.
        for (const container of hello.running) this.#held.hold(container);
        if (!(await this.#upgrade(socket!, hello))) return this.#serve(socket!, hello);
        this.#starter.expect(hello.pid);
        deadline = performance.now() + startMs;
        continue;
      }
      const late = silent || performance.now() > deadline;
      if (this.#closed || (late && ousted)) {
        const log = monitorLogFile(this.#state);
        throw new CriError("UNAVAILABLE", `the monitor does not answer on ${path}: see ${log}`);
      }
      if (late) {
        ousted = true;
        this.#starter.oust({ all: silent });
        deadline = performance.now() + startMs;
      }
      this.#starter.startIfDue();
      await sleep(retryMs);
    }
  }

  #serve(socket: Socket, hello: Hello): Socket {
    this.#log.debug("monitor found", { pid: hello.pid, version: hello.version });
    this.#starter.serves(hello.pid);
    this.#socket = socket;
    this.#pid = hello.pid;
    this.#watch(socket, hello.pid);
    this.#takeOver(socket, hello);
    this.#greeted = Promise.resolve(this.#onHello(hello));
    return socket;
  }

  /** A monitor that answers nothing is killed: containers outlive that, and the next one takes over. */
  #watch(socket: Socket, pid: number): void {
    const beat = heartbeat(
      () => this.#send(socket, "ping", {}),
      () => {
        this.#log.error("the monitor answers nothing: killing it, another one takes over", { pid });
        kill(pid); // its socket is open, so the pid is still its own
        socket.destroy();
      },
    );
    socket.on("close", () => beat[Symbol.dispose]());
  }

  /** undefined: it ended; the next one is asked. */
  async #greet(socket: Socket): Promise<Hello | "silent" | undefined> {
    this.#attach(socket);
    let silent = false;
    const late = setTimeout(() => {
      silent = true;
      socket.destroy();
    }, helloMs);
    try {
      return (await this.#send(socket, "hello", {})).result as Hello;
    } catch {
      return silent ? "silent" : undefined;
    } finally {
      clearTimeout(late);
    }
  }

  /** Asks a monitor of another build to become this one, once; true when it is to be greeted anew. */
  async #upgrade(socket: Socket, hello: Hello): Promise<boolean> {
    if (hello.executable === executable || this.#upgradeTried) return false;
    this.#upgradeTried = true;
    const builds = { pid: hello.pid, from: hello.executable, to: executable };
    this.#log.info("upgrading the monitor", builds);
    const late = setTimeout(() => socket.destroy(), upgradeMs);
    try {
      await this.#send(socket, "upgrade", { argv: this.#program });
    } catch (error) {
      if (socket.destroyed) return true; // whoever answers next is greeted; a silent one is killed
      this.#log.error("the monitor stays as it is", { error: messageOf(error) });
    } finally {
      clearTimeout(late);
    }
    return false;
  }

  #attach(socket: Socket): void {
    socket.on("error", (error) => this.#log.debug("monitor connection", { error: error.message }));
    socket.on("close", () => {
      const lost = new CriError("UNAVAILABLE", "the monitor ended during the call; try again");
      for (const waiting of this.#waiting.values()) waiting.reject(lost);
      this.#waiting.clear();
      if (this.#closed || this.#socket !== socket) return;
      this.#socket = undefined;
      this.#pid = undefined;
      this.#losses++;
      this.#log.warn("monitor gone, starting another");
      this.#reconnect().catch(logFailure(this.#log, "no monitor"));
    });
    readFrames(socket, (header, body) => {
      if ("event" in header) this.#exited((header as EventHeader).exit);
      else this.#settle(header as ReplyHeader, body);
    });
  }

  async #reconnect(): Promise<void> {
    while (!this.#closed) {
      try {
        await this.#connected();
        return;
      } catch (error) {
        this.#log.error("no monitor", { error: messageOf(error) });
        await sleep(retryLaterMs);
      }
    }
  }

  #settle(reply: ReplyHeader, body: Buffer): void {
    const waiting = this.#waiting.get(reply.seq);
    this.#waiting.delete(reply.seq);
    if (reply.error === undefined) waiting?.resolve({ result: reply.result, body });
    else waiting?.reject(new CriError(reply.error.code, reply.error.message));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    await this.#connecting?.catch(() => {});
    this.#socket?.destroy();
  }
}

function dial(path: string): Promise<Socket | undefined> {
  return new Promise((resolve) => {
    const socket = createConnection(path);
    socket.once("connect", () => resolve(socket));
    socket.once("error", () => resolve(undefined));
  });
}
