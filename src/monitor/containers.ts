// The containers under the monitor: started by the OCI runtime as grandchildren, adopted because the
// monitor is a subreaper, reaped by pid, their exits recorded before anyone is told.
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/int64.ts";
import type { Log } from "../base/log.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import { OomLedger } from "../node/oom.ts";
import type { RuntimeCommand } from "../node/runtime.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { reap } from "../sys/wait.ts";
import { processState, startTime } from "../sys/process.ts";
import type { ExitRecord, Hello, Started, StartRequest } from "./protocol.ts";
import type { Spawner } from "./spawner.ts";
import { openStdio, reopenStdio, type Stdio } from "./stdio.ts";
import type { LogWorkers } from "./worker_client.ts";

/** What a new monitor needs to look after a container that an older one started. */
type Record = StartRequest & {
  pid: number;
  pidStartTime: string;
  startedAtNs: string;
};
type RemoveRequest = { id: string; runtime: RuntimeCommand; timeoutMs: number };
type Container = {
  record: Record;
  stdio: Stdio;
  exit: Promise<ExitRecord>;
  onExit: (exitCode: number, known: boolean) => void;
};

const SIGKILL = 9;

export class Containers {
  readonly #folder: string;
  readonly #workers: LogWorkers;
  readonly #spawner: Spawner;
  readonly #log: Log;
  readonly #oom = new OomLedger();
  readonly #running = new Map<string, Container>();
  readonly #exits = new Map<string, ExitRecord>();
  readonly #announce: (exit: ExitRecord) => void;
  /** The runtime's delete, which runs behind the exit. */
  readonly #deleting = new Map<string, Promise<void>>();
  /** The runtime's start: a container may end before it has, and delete would take its files away. */
  readonly #starting = new Map<string, Promise<unknown>>();

  constructor(options: {
    folder: string;
    workers: LogWorkers;
    spawner: Spawner;
    log: Log;
    announce: (exit: ExitRecord) => void;
  }) {
    this.#folder = options.folder;
    this.#workers = options.workers;
    this.#spawner = options.spawner;
    this.#log = options.log;
    this.#announce = options.announce;
  }

  get running(): Hello["running"] {
    return [...this.#running.values()].map(({ record }) => {
      const { id, pid, startedAtNs, stdio, stdin, terminal } = record;
      return { id, pid, startedAtNs, stdio, stdin, terminal };
    });
  }

  get exits(): ExitRecord[] {
    return [...this.#exits.values()];
  }

  get pids(): number[] {
    return [...this.#running.values()].map(({ record }) => record.pid);
  }

  /** A container that runs: its cgroup and its runtime. */
  find(id: string): { cgroup: CgroupPaths; runtime: RuntimeCommand } | undefined {
    return this.#running.get(id)?.record;
  }

  /** Takes over what an earlier monitor left: containers that run, exits that were recorded. */
  async resume(): Promise<void> {
    await mkdir(join(this.#folder, "containers"), { recursive: true, mode: 0o700 });
    await mkdir(join(this.#folder, "exits"), { recursive: true, mode: 0o700 });
    for (const file of await readdir(join(this.#folder, "exits"))) {
      if (!file.endsWith(".json")) continue;
      const text = await readFile(join(this.#folder, "exits", file), "utf8");
      const exit = JSON.parse(text) as ExitRecord;
      this.#exits.set(exit.id, exit);
    }
    for (const file of await readdir(join(this.#folder, "containers"))) {
      if (!file.endsWith(".json")) continue;
      const text = await readFile(join(this.#folder, "containers", file), "utf8");
      const record = JSON.parse(text) as Record;
      if (!this.#exits.has(record.id)) await this.#adopt(record);
    }
  }

  async #adopt(record: Record): Promise<void> {
    this.#track(record, await reopenStdio(record, this.#workers));
    this.#log.info("container taken over", { container: record.id, pid: record.pid });
  }

  /** Creates and starts a container; its process is this process's child when this returns. */
  async start(request: StartRequest): Promise<Started> {
    const { id } = request;
    if (this.#running.has(id)) {
      throw new CriError("FAILED_PRECONDITION", `container ${id} is running`);
    }
    await this.#forget(id);
    const stdio = await openStdio(request, { workers: this.#workers, folder: this.#folder });
    let pid: number;
    try {
      pid = await this.#create(request, stdio);
    } catch (error) {
      await this.#deleteIfPossible(request);
      await this.#endLog(id);
      stdio.close();
      throw error;
    }
    const record = {
      ...request,
      pid,
      pidStartTime: startTime(pid) ?? "",
      startedAtNs: String(nowNs()),
    };
    await writeFileAtomic(this.#file("containers", id), JSON.stringify(record));
    this.#track(record, stdio);
    const { runtime, timeoutMs } = request;
    const started = this.#spawner.runtime(runtime, ["start", id], { timeoutMs });
    this.#starting.set(
      id,
      started.catch(() => {}).finally(() => this.#starting.delete(id)),
    );
    try {
      await started;
    } catch (error) {
      await this.#deleteIfPossible(record);
      throw error;
    }
    return { pid, startedAtNs: record.startedAtNs };
  }

  async #create(request: StartRequest, stdio: Stdio): Promise<number> {
    const pidFile = join(request.stdio, "pid");
    try {
      const verb = ["create", "--bundle", request.bundle, "--pid-file", pidFile];
      await this.#spawner.runtime(request.runtime, [...verb, ...stdio.args, request.id], {
        timeoutMs: request.timeoutMs,
        stdio: stdio.child,
      });
    } catch (error) {
      await stdio.created().catch(() => {}); // there may be no terminal yet; the first error tells
      throw error;
    }
    await stdio.created();
    return Number(await readFile(pidFile, "utf8"));
  }

  #track(record: Record, stdio: Stdio): void {
    const ended = Promise.withResolvers<{ exitCode: number; known: boolean }>();
    const container: Container = {
      record,
      stdio,
      exit: ended.promise.then((end) => this.#finish(container, end)),
      onExit: (exitCode, known) => ended.resolve({ exitCode, known }),
    };
    container.exit.catch((error: unknown) => {
      this.#log.error("recording an exit failed", {
        container: record.id,
        error: messageOf(error),
      });
    });
    this.#running.set(record.id, container);
    this.#oom.started(record.id, record.cgroup);
    this.check();
  }

  /** Looks at every container's init: called on SIGCHLD, and now and then. */
  check(): void {
    for (const container of this.#running.values()) {
      const { pid, pidStartTime } = container.record;
      try {
        const status = reap(pid);
        if (status !== undefined) container.onExit(status.exitCode, true);
      } catch (error) {
        // An earlier monitor's child, which is the daemon's now: that reaps it when we know of its end.
        if (errnoOf(error) !== "ECHILD") throw error;
        const state = processState(pid, pidStartTime);
        if (state === "gone") container.onExit(255, false);
        else if (state !== "running") container.onExit(state.exitCode, true);
      }
    }
  }

  async #finish(
    container: Container,
    end: { exitCode: number; known: boolean },
  ): Promise<ExitRecord> {
    const { record } = container;
    const finishedAtNs = String(nowNs());
    const kills = this.#oom.exited(record.id);
    const lostLogBytes = await this.#endLog(record.id);
    container.stdio.close();
    const exit: ExitRecord = {
      id: record.id,
      pid: record.pid,
      ...end,
      startedAtNs: record.startedAtNs,
      finishedAtNs,
      oomKilled: kills > 0n && end.exitCode !== 0,
      lostLogBytes,
    };
    await writeFileAtomic(this.#file("exits", record.id), JSON.stringify(exit));
    this.#exits.set(record.id, exit);
    const starting = this.#starting.get(record.id) ?? Promise.resolve();
    this.#deleting.set(
      record.id,
      starting.then(() => this.#deleteIfPossible(record)),
    );
    this.#running.delete(record.id);
    this.#announce(exit);
    return exit;
  }

  /** A disk that stalls holds up no exit: the log is written on when it goes on. */
  async #endLog(id: string): Promise<number> {
    try {
      return await this.#workers.end(id);
    } catch (error) {
      this.#log.warn("the log is late", { container: id, error: messageOf(error) });
      return 0;
    }
  }

  /** runtime delete: the cgroup goes, and with it every process that is left in it. */
  async #delete({ id, runtime, timeoutMs }: RemoveRequest): Promise<void> {
    await this.#spawner.runtime(runtime, ["delete", "--force", id], { timeoutMs });
  }

  /** What fails now is found again by remove(), or by the daemon's sweep of orphans. */
  async #deleteIfPossible(request: RemoveRequest): Promise<void> {
    try {
      await this.#delete(request);
    } catch (error) {
      this.#log.warn("runtime delete failed", { container: request.id, error: messageOf(error) });
    }
  }

  /** Sends a signal to the container's init; false when it has ended. */
  kill(id: string, signal: number): boolean {
    const container = this.#running.get(id);
    if (container === undefined) return false;
    try {
      // A child that was not reaped keeps its pid, so this can hit nobody else.
      process.kill(container.record.pid, signal);
      return true;
    } catch (error) {
      if (errnoOf(error) === "ESRCH") return false;
      throw error;
    }
  }

  async reopenLog(id: string): Promise<void> {
    if (!this.#running.has(id)) {
      throw new CriError("FAILED_PRECONDITION", `container ${id} is not running`);
    }
    await this.#workers.reopen(id);
  }

  /** Kills what runs, and forgets the container; again and again if need be. */
  async remove(request: RemoveRequest): Promise<void> {
    const { id, runtime } = request;
    const container = this.#running.get(id);
    if (container !== undefined) {
      this.kill(id, SIGKILL);
      await container.exit;
    }
    await this.#forget(id);
    // What a failed delete, or a monitor that was killed, left with the runtime.
    if (existsSync(join(runtime.root, id))) await this.#delete(request);
  }

  async #forget(id: string): Promise<void> {
    await this.#deleting.get(id);
    this.#deleting.delete(id);
    this.#exits.delete(id);
    await rm(this.#file("containers", id), { force: true });
    await rm(this.#file("exits", id), { force: true });
  }

  #file(kind: "containers" | "exits", id: string): string {
    return join(this.#folder, kind, `${id}.json`);
  }
}
