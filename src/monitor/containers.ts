// Starts, watches and removes the monitor's containers. The OCI runtime starts them as grandchildren, which
// the monitor adopts as a subreaper; it records each exit before it reaps the init by its pid and announces it.
import { inTime } from "../base/abort.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { type Log, logFailure } from "../base/log.ts";
import { OomLedger } from "../node/oom.ts";
import { keepOnExec, type Descriptor } from "../sys/descriptor.ts";
import { lineageOf, startTime } from "../sys/process.ts";
import { sendDescriptors } from "../sys/unix_socket.ts";
import { openPidfd, reapIfChild } from "../sys/wait.ts";
import { Container } from "./container.ts";
import { createContainer, refuseEnded, type Creation } from "./creation.ts";
import { Deletions } from "./deletions.ts";
import { Exits } from "./exits.ts";
import { HeldStarts } from "./held_starts.ts";
import { pin, startTimeOfInit, unpin, type End } from "./init_process.ts";
import type { AdoptRequest, Hello, RemoveRequest, Started } from "./protocol.ts";
import type { ExitRecord, RunRecord, StartRequest } from "./record_schemas.ts";
import { setAside, type RecordFolder } from "./records.ts";
import { Runtimes } from "./runtimes.ts";
import type { Spawner } from "./spawner.ts";
import { hasTerminal, reopenStdio, resumeTerminal, type Stdio } from "./stdio.ts";
import { PendingStarts } from "./pending_starts.ts";
import { AwaitedTerminals } from "./awaited_terminals.ts";
import type { LogWorkers } from "./log_workers.ts";

const SIGKILL = 9;
const killed: End = { exitCode: 128 + SIGKILL, known: true };

type Parts = { folder: string; records: RecordFolder; workers: LogWorkers; spawner: Spawner };

export class Containers {
  readonly #parts: Parts;
  readonly #records: RecordFolder;
  readonly #workers: LogWorkers;
  readonly runtimes: Runtimes;
  readonly #log: Log;
  readonly #oom: OomLedger;
  readonly #running = new Map<string, Container>();
  readonly exits: Exits;
  readonly #announce: (exit: ExitRecord) => void;
  /** The runtime's deletes after an exit, or after an interrupted start. */
  readonly #deletions: Deletions;
  /** The runtime's starts under way: a container may end before its start does, and must not be deleted until then. */
  readonly #starting = new Map<string, Promise<unknown>>();
  readonly starts = new PendingStarts();
  /** End the runtime's calls of a start. */
  readonly #cancels = new Map<string, AbortController>();
  readonly #held: HeldStarts;
  readonly #terminals: AwaitedTerminals;
  #quiet = false;

  constructor(options: Parts & { log: Log; announce: (exit: ExitRecord) => void }) {
    this.#parts = options;
    this.#records = options.records;
    this.exits = new Exits(options.records, options.log);
    this.#terminals = new AwaitedTerminals(options.folder);
    this.#workers = options.workers;
    this.#oom = new OomLedger({ changes: (id, paths) => options.workers.watchMemory(id, paths) });
    this.runtimes = new Runtimes({ ...options, onEnd: (id) => this.#check(this.#running.get(id)) });
    this.#deletions = new Deletions(this.runtimes, options.log);
    this.#log = options.log;
    this.#held = new HeldStarts(this.starts, options.log);
    this.#announce = options.announce;
  }

  get running(): Hello["running"] {
    return [...this.#running.values()].map(({ record, stdio: { terminal: kept } }) => {
      const { id, pid, startedAtNs, stdio, stdin } = record;
      const terminal = hasTerminal(record);
      return { id, pid, startedAtNs, stdio, stdin, terminal, terminalHeld: kept !== undefined };
    });
  }

  /** The terminals' descriptors, which cannot be opened again. */
  get terminals(): Map<string, Descriptor> {
    const terminals = new Map<string, Descriptor>();
    for (const [id, { stdio }] of this.#running) {
      if (stdio.terminal !== undefined) terminals.set(id, stdio.terminal);
    }
    return terminals;
  }

  get pids(): number[] {
    return [...this.#running.values()].map(({ record }) => record.pid).concat(this.#held.pids);
  }

  /** Returns a running container's record. */
  find(id: string): RunRecord | undefined {
    return this.#running.get(id)?.record;
  }

  /** Adopts the running containers and recorded exits of an earlier monitor. */
  async resume(terminals: Map<string, Descriptor>): Promise<void> {
    await this.#records.make();
    const { runs, exits } = this.#records.read((file, error) => {
      const fields = { file, error: messageOf(error) };
      this.#log.error("a record cannot be read: renaming it to .damaged", fields);
      setAside(file);
    });
    for (const exit of exits) this.exits.resume(exit);
    for (const run of runs) {
      try {
        if (this.exits.get(run.id) !== undefined) {
          unpin(this.#records.pinOf(run.id));
          this.#deletions.resume(run);
        } else if (run.started) await this.#adopt(run, terminals.get(run.id));
        else this.#undo(run);
      } catch (error) {
        const fields = { container: run.id, error: messageOf(error) };
        this.#log.error("adopting a container failed, going on with the others", fields);
      }
    }
  }

  /** Writes all records again after their folder was removed. */
  rewrite(): void {
    this.#records.keepFolders();
    this.exits.rewrite();
    for (const { record } of this.#running.values()) this.#rewriteRun(record);
  }

  /**
   * Adopts a container whose record was lost, from the daemon's record. When its process has ended, its exit
   * is announced, with the code if the kernel kept it.
   */
  async adopt(request: AdoptRequest): Promise<void> {
    const { id, pid, cgroup } = request;
    if (this.#running.has(id) || this.starts.has(id)) return;
    const exit = this.exits.get(id);
    if (exit !== undefined) return this.#announce(exit);
    const isShims = request.runtime.shim !== undefined;
    const pidStartTime = isShims
      ? (startTime(pid) ?? "")
      : startTimeOfInit(pid, this.#records.pinOf(id), cgroup);
    const record: RunRecord = { ...request, version: 1, pidStartTime, started: true };
    if (pidStartTime !== "") this.#rewriteRun(record);
    await this.#adopt(record, undefined);
  }

  #rewriteRun(record: RunRecord): void {
    try {
      this.#records.writeRun(record);
      if (record.runtime.shim === undefined) pin(record.pid, this.#records.pinOf(record.id));
    } catch (error) {
      // The daemon has the next monitor adopt it again.
      const fields = { container: record.id, error: messageOf(error) };
      this.#log.error("writing the record of a running container failed", fields);
    }
  }

  async #adopt(record: RunRecord, terminal: Descriptor | undefined): Promise<void> {
    const container = this.#track(record, reopenStdio(record, this.#workers, this.#log));
    if (terminal !== undefined) {
      keepOnExec(terminal, false);
      this.#resumeTerminal(container, terminal);
    } else if (hasTerminal(record)) this.#terminals.expect(record.id);
    this.#log.info("container adopted", { container: record.id, pid: record.pid });
    if (record.runtime.shim !== undefined) return this.runtimes.adopt(record);
    container.isChild = lineageOf(record.pid)?.parent === process.pid;
    // Without a pidfd, the main loop's checks detect the exit of a process that is no child.
    if (container.ended || container.isChild) return;
    const pidfd = openPidfd(record.pid);
    if (pidfd === undefined) return;
    const ended = this.#workers.readable(pidfd).then(() => this.#check(container));
    ended.catch(logFailure(this.#log, "waiting for a pidfd failed"));
  }

  #resumeTerminal({ record, stdio }: Container, terminal: Descriptor): void {
    resumeTerminal(stdio, terminal, { request: record, workers: this.#workers });
    this.#terminals.received(record.id);
  }

  /** Sends a terminal's descriptor to the daemon, which keeps it for the next monitor. */
  lendTerminal(id: string, path: string): void {
    const terminal = this.#running.get(id)?.stdio.terminal;
    if (terminal !== undefined) sendDescriptors(path, [terminal]);
  }

  awaitTerminal(id: string): string {
    return this.#terminals.listen(id);
  }

  takeTerminal(id: string): void {
    const terminal = this.#terminals.take(id);
    const container = this.#running.get(id);
    if (container !== undefined && container.stdio.terminal === undefined) {
      this.#resumeTerminal(container, terminal);
    } else terminal.close();
  }

  async closeStdin({ id, key = "" }: { id: string; key?: string }): Promise<void> {
    const container = this.#running.get(id);
    if (key === "") container?.stdio.closeStdin();
    if (container?.record.runtime.shim === undefined) return;
    const client = await (await this.runtimes.shims()).clientOf(id);
    await client.closeStdin({ id, exec_id: key });
  }

  /** Rolls back an interrupted start in the background; only the next call for the container waits until it is done. */
  #undo(record: RunRecord): void {
    const { id } = record;
    this.#log.warn("rolling back an interrupted start", { container: id });
    this.#deletions.begin(record, { onDeleted: () => this.#records.remove(id) });
  }

  /** Creates and starts a container; its init is a child of this process then. */
  async start(request: StartRequest): Promise<Started> {
    this.#requireNew(request);
    const start = async () => this.#start(await this.#create(request));
    return this.starts.run(request.id, start());
  }

  /** Creates a container; its start waits for startCreated(), or, when gone aborts, is undone. */
  async create(request: StartRequest, gone: AbortSignal): Promise<Started> {
    this.#requireNew(request);
    const { record } = await this.#held.create(request, gone, () => this.#create(request));
    return { pid: record.pid, startedAtNs: record.startedAtNs };
  }

  #requireNew({ id }: StartRequest): void {
    if (!this.#running.has(id) && !this.starts.has(id)) return;
    throw new CriError("FAILED_PRECONDITION", `container ${id} is running`);
  }

  /** Starts a container that create() has made. */
  async startCreated({ id }: StartRequest): Promise<Started> {
    return this.#held.start(id, async (creation) => {
      const { record, undo } = creation;
      try {
        refuseEnded(record, this.runtimes.endOf(record, this.#records.pinOf(id)));
      } catch (error) {
        await undo.disposeAsync();
        throw error;
      }
      record.startedAtNs = String(nowNs());
      return this.#start(creation);
    });
  }

  /** Waits for the start of an earlier caller. @throws as the start does; NOT_FOUND when it failed before. */
  async awaitStart(id: string): Promise<Started> {
    const { pid, startedAtNs } =
      (await this.starts.join(id)) ?? this.#running.get(id)?.record ?? this.exits.get(id) ?? {};
    if (pid !== undefined && startedAtNs !== undefined) return { pid, startedAtNs };
    throw new CriError("NOT_FOUND", `the start of container ${id} failed while no daemon listened`);
  }

  cancelStart(id: string): void {
    this.#cancels.get(id)?.abort(new CriError("CANCELLED", `container ${id} is being stopped`));
  }

  async #create(request: StartRequest): Promise<Creation> {
    const { id } = request;
    await this.#forget(id);
    const cancel = new AbortController();
    this.#cancels.set(id, cancel);
    return createContainer(request, {
      signal: cancel.signal,
      ...this.#parts,
      runtimes: this.runtimes,
      endLog: () => this.#endLog(request),
      forget: () => this.#forget(id),
    });
  }

  async #start({ record, stdio, undo }: Creation): Promise<Started> {
    const { id, runtime } = record;
    undo.move(); // from here on its end is an exit
    this.#track(record, stdio);
    const started = this.runtimes.start(record, record.pid);
    const ended = started.catch(() => 0).finally(() => this.#starting.delete(id));
    this.#starting.set(id, ended);
    try {
      const pid = await started;
      if (pid !== record.pid) record.pidStartTime = startTime(pid) ?? "";
      record.pid = pid;
      record.started = true;
      this.#records.writeRun(record);
    } catch (error) {
      await this.runtimes.deleteIfPossible(record);
      // Nobody reports the end of a container whose shim has ended, too.
      if (runtime.shim !== undefined) this.#running.get(id)?.onExit(killed);
      throw error;
    }
    return { pid: record.pid, startedAtNs: record.startedAtNs };
  }

  #track(record: RunRecord, stdio: Stdio): Container {
    const container = new Container(record, stdio, (ended, end) => this.#finish(ended, end));
    container.exit.catch((error: unknown) => {
      const fields = { container: record.id, error: messageOf(error) };
      this.#log.error("handling the exit of a container failed", fields);
    });
    this.#running.set(record.id, container);
    // A container in a guest has no cgroup on this node.
    if (Object.keys(record.cgroup).length > 0) this.#oom.started(record, record.cgroup);
    this.#check(container); // it may have ended before it was tracked
    return container;
  }

  /** Checks every container's init for its exit: called at intervals. */
  check(): void {
    this.#running.forEach((container) => this.#check(container));
  }

  /**
   * Checks the containers whose end a SIGCHLD announces. A look at any other container costs more, and there may be
   * a thousand from before the monitor's start.
   */
  checkChildren(): void {
    for (const one of this.#running.values()) if (one.isChild) this.#check(one);
  }

  #check(container: Container | undefined): void {
    if (this.#quiet || container === undefined) return;
    const { record } = container;
    const end = this.runtimes.endOf(record, this.#records.pinOf(record.id));
    if (end !== undefined) container.onExit(end);
  }

  /** Repeats exit records and deletes that have failed: called at intervals. */
  retry(): void {
    this.exits.retry();
    if (!this.#quiet) this.#deletions.retry();
  }

  async #finish(container: Container, end: End): Promise<ExitRecord> {
    const { record } = container;
    const finishedAtNs = String(nowNs());
    const oom = this.#oom.ended(record.id, end.exitCode);
    await this.#terminals.arrived(record.id);
    container.stdio.exited();
    const lostLogBytes = await this.#endLog(record);
    container.stdio.close();
    const exit: ExitRecord = {
      id: record.id,
      pid: record.pid,
      ...end,
      startedAtNs: record.startedAtNs,
      finishedAtNs,
      ...oom,
      lostLogBytes,
    };
    await this.exits.add(exit);
    reapIfChild(record.pid);
    this.#deletions.begin(record, { after: this.#starting.get(record.id) });
    this.#running.delete(record.id);
    this.#announce(exit);
    return exit;
  }

  /** A disk that stalls delays no exit: the log is completed when the disk answers. */
  async #endLog({ id, runtime }: Pick<RunRecord, "id" | "runtime">): Promise<number> {
    try {
      return await this.#workers.end(id, runtime.shim !== undefined);
    } catch (error) {
      const fields = { container: id, error: messageOf(error) };
      this.#log.warn("ending the log of a container is late, it is completed later", fields);
      return 0;
    }
  }

  /** Sends a signal to the container's init; false when it has ended. */
  async kill(id: string, signal: number): Promise<boolean> {
    const container = this.#running.get(id);
    return container !== undefined && this.runtimes.kill(container.record, signal);
  }

  /**
   * Leaves further exits to the next build, until release(), and finishes those that were detected.
   * @throws CriError RESOURCE_EXHAUSTED while an exit cannot be recorded for the next build.
   */
  async quiesce(): Promise<void> {
    this.#quiet = true;
    const ended = [...this.#running.values()].filter((container) => container.ended);
    await Promise.all(ended.map(({ exit }) => exit));
    await this.#deletions.settled();
    this.exits.requireWritten();
  }

  release(): void {
    this.#quiet = false;
    this.check();
  }

  /** Kills and forgets a container; idempotent. */
  async remove(request: RemoveRequest): Promise<void> {
    const { id } = request;
    await this.#held.undo(id, "it is removed");
    await this.starts.ended(id); // the start has a deadline, and its container is removed too
    const container = this.#running.get(id);
    if (container !== undefined) {
      await this.kill(id, SIGKILL);
      await inTime(container.exit, `the exit of container ${id}`, request.timeoutMs);
    }
    await this.#forget(id);
    // The runtime's state is left over after a failed delete, or after a monitor that was killed.
    if (this.runtimes.isLeft(request)) await this.runtimes.delete(request);
  }

  async #forget(id: string): Promise<void> {
    this.#cancels.delete(id);
    await this.#deletions.forget(id);
    this.exits.delete(id);
    await this.#records.remove(id);
  }
}
