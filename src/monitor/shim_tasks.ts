// Runs containers with shims: starts each shim, calls its Task service, and follows its containers' ends. A shim
// outlives the monitor; the next one finds it by the address in the container's bundle.
//
// A shim's bundle is a folder of the monitor's own, with a copy of the container's config.json: shims write
// files into it, and at a container's end some unmount whatever lies at its rootfs.
import { copyFileSync, existsSync, mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { inTime } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { type Log, logFailure } from "../base/log.ts";
import { isRuncShim } from "../base/shim_program.ts";
import {
  deleteWithoutShim,
  startShim,
  type ShimAddress,
  type ShimCall,
} from "../shim/bootstrap.ts";
import {
  hasEnded,
  isShimRunning,
  readShimFile,
  writeShimFile,
  type ShimFile,
} from "../shim/shim_file.ts";
import { isNoAnswer, TaskClient } from "../shim/task_client.ts";
import { taskOptions } from "../shim/task_options.ts";
import { childrenOf, executes, startTime } from "../sys/process.ts";
import { listenerOf } from "../sys/socket_listener.ts";
import type { End } from "./init_process.ts";
import type { RemoveRequest } from "./protocol.ts";
import type { RunRecord, StartRequest } from "./record_schemas.ts";
import { ShimSockets } from "./shim_sockets.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

const SIGKILL = 9;
/** Limit for a shim to accept a connection and to answer. */
const connectMs = 5_000;
/** Between two attempts to reach a shim that does not answer; the first retry comes early: the shim may be ending. */
const retryMs = 5_000;
const firstRetryMs = 200;
/** Limit for a shim to end after its last container. */
const shutdownMs = 2_000;
const shutdownPollMs = 10;

/** A container and its shim. */
type Task = {
  id: string;
  program: string;
  shim?: ShimFile;
  /** Absent while there is no connection to the shim, and once the shim has ended. */
  client?: TaskClient;
  /** The latest attempt to reach the shim. */
  connecting?: Promise<void>;
  end?: End;
  /** The container is being removed: its shim may end. */
  isRemoved?: true;
};

export class ShimTasks {
  readonly #folder: string;
  readonly #log: Log;
  readonly #onEnd: (id: string) => void;
  readonly #tasks = new Map<string, Task>();
  /** Paths of shims that have kept a container which they could not delete: those never end by themselves. */
  readonly #keeping = new Set<string>();
  readonly #sockets = new ShimSockets((path) => this.#hasTasks(path));

  /** folder: of the bundles. onEnd: called when a container has ended. */
  constructor(options: { folder: string; log: Log; onEnd: (id: string) => void }) {
    this.#folder = options.folder;
    this.#log = options.log;
    this.#onEnd = options.onEnd;
  }

  /** Starts the container's shim, or finds that of its pod, and returns the container's pid. */
  async create(request: StartRequest): Promise<number> {
    const { id, timeoutMs } = request;
    this.#makeBundle(request);
    const created: Task = { id, program: request.runtime.path };
    this.#tasks.set(id, created);
    try {
      return await this.#create(created, request);
    } catch (error) {
      if (codeOf(error) !== "UNAVAILABLE") throw error;
    }
    // The pod's shim has ended after it gave its address, perhaps amid the creation.
    const call = this.#call(created, AbortSignal.timeout(timeoutMs));
    await deleteWithoutShim(call).catch(nothing);
    this.#makeBundle(request);
    return this.#create(created, request);
  }

  async #create(created: Task, request: StartRequest): Promise<number> {
    const { id, runtime, timeoutMs, stdio, stdin, terminal } = request;
    const signal = AbortSignal.timeout(timeoutMs);
    const options = taskOptions(runtime);
    const call = { ...this.#call(created, signal), options };
    const start = () => step("shim-start", () => startShim(call));
    const address = await this.#startShim(created, start);
    const client = await step("shim-connect", () => this.#connect(created, address));
    const at = (name: string) => join(stdio, name);
    const pid = await step("shim-create", () =>
      client.create(
        {
          id,
          bundle: call.bundle,
          terminal,
          stdin: stdin ? at("stdin") : "",
          stdout: at("stdout"),
          stderr: terminal ? "" : at("stderr"),
          options,
        },
        timeoutMs,
      ),
    );
    await this.#learnPid(created, client);
    this.#follow(created, client);
    return pid;
  }

  #startShim(started: Task, start: () => Promise<ShimAddress>): Promise<ShimAddress> {
    return this.#sockets.starting(async () => {
      const address = await start();
      // At once: a shim that nobody knows would run for ever.
      this.#record(started, address, 0);
      return address;
    });
  }

  /**
   * Returns the pid of the container's first process when its program is executed, where it is a process of this
   * kernel. created: create()'s answer; some shims give their own pid there, and the process's at the start.
   */
  async start({ id, timeoutMs, runtime }: StartRequest, created: number): Promise<number> {
    const client = await this.clientOf(id);
    let pid = created;
    const start = async () => {
      pid = (await client.start({ id }, timeoutMs)) || created;
    };
    const isOnHost = isRuncShim(runtime.shim!.type);
    await step("runtime-start", () => (isOnHost ? executes(created, start) : start()));
    return pid;
  }

  /** Finds the shim of a container that an earlier monitor has started, in the background: it may be stuck. */
  adopt({ id, runtime }: RunRecord): void {
    const adopted: Task = { id, program: runtime.path, shim: readShimFile(this.#bundle(id)) };
    this.#tasks.set(id, adopted);
    this.#search(adopted).catch(logFailure(this.#log, "following a shim's container failed"));
  }

  endOf(id: string): End | undefined {
    return this.#tasks.get(id)?.end;
  }

  /**
   * Returns the client of a container's shim. If there is none yet, waits for an attempt under way to reach the shim,
   * as after a monitor's start. @throws CriError NOT_FOUND, or UNAVAILABLE while the shim does not answer.
   */
  async clientOf(id: string, timeoutMs = connectMs): Promise<TaskClient> {
    const found = this.#tasks.get(id);
    if (found === undefined) throw new CriError("NOT_FOUND", `no shim runs container ${id}`);
    if (found.client === undefined && found.connecting !== undefined) {
      await inTime(found.connecting, "reaching a shim", timeoutMs).catch(nothing); // reported below
    }
    if (found.client !== undefined) return found.client;
    throw new CriError("UNAVAILABLE", `the shim of container ${id} does not answer`);
  }

  /**
   * Sends a signal to the container's first process; false when it has ended. A shim that does not answer to
   * SIGKILL is killed itself, with all containers of its pod.
   */
  async kill(id: string, signal: number): Promise<boolean> {
    const found = this.#tasks.get(id);
    if (found === undefined || found.end !== undefined) return false;
    try {
      await (await this.clientOf(id)).kill({ id, signal, all: signal === SIGKILL });
      return true;
    } catch (error) {
      if (codeOf(error) === "NOT_FOUND") return false;
      if (signal !== SIGKILL || !isNoAnswer(error)) throw error;
      this.#log.error("a shim does not answer: killing it", { container: id, ...found.shim });
      // Nothing would end a container whose shim cannot be killed.
      if (!this.#killShim(found)) {
        this.#disconnect(found);
        await this.#lost(found, messageOf(error));
      }
      return true;
    }
  }

  /** Removes a container, which is killed if it runs, and its shim after its last container. Idempotent. */
  async delete({ id, runtime, timeoutMs }: RemoveRequest): Promise<void> {
    const found = this.#tasks.get(id) ?? this.#left(id, runtime.path);
    if (found === undefined) return;
    found.isRemoved = true;
    await step("runtime-delete", () => this.#delete(found, timeoutMs));
    this.#tasks.delete(id);
    await this.#endShim(found);
    found.client?.[Symbol.dispose]();
    if (found.shim !== undefined) this.#sockets.left(found.shim.path);
    removeTreeNow(this.#bundle(id));
  }

  async #delete(found: Task, timeoutMs: number): Promise<void> {
    const { id } = found;
    const client = found.client ?? (await this.#reach(found, timeoutMs));
    let doesAnswer = false;
    if (client !== undefined) {
      try {
        return await this.#deleteBy(client, found, timeoutMs);
      } catch (error) {
        doesAnswer = !isNoAnswer(error);
        const fields = { container: id, error: messageOf(error) };
        this.#log.warn("a shim did not delete its container: cleaning up without it", fields);
      }
    }
    if (found.shim === undefined) return;
    // A shim that answers goes on with the other containers of its pod.
    if (doesAnswer) this.#keeping.add(found.shim.path);
    else this.#killShim(found);
    await deleteWithoutShim(this.#call(found, AbortSignal.timeout(timeoutMs)));
  }

  /** Ends the shim of a deleted container, unless it has others. */
  async #endShim(deleted: Task): Promise<void> {
    const { id, client, shim } = deleted;
    if (shim === undefined || this.#hasTasks(shim.path)) return;
    let answer = "it has agreed to end";
    await client?.shutdown(id).catch((error: unknown) => {
      answer = messageOf(error); // also when it answers by its end
    });
    const untilMs = this.#keeping.has(shim.path) ? 0 : performance.now() + shutdownMs;
    // If a container is being started on this shim meanwhile, create() starts it again with another shim.
    while (isShimRunning(shim) && !this.#hasTasks(shim.path)) {
      if (performance.now() >= untilMs) {
        const fields = { container: id, ...shim, answer };
        this.#log.warn("a shim without containers does not end: killing it", fields);
        this.#killShim(deleted);
        return;
      }
      await sleep(shutdownPollMs);
    }
    if (!this.#hasTasks(shim.path)) this.#keeping.delete(shim.path);
  }

  #hasTasks(path: string): boolean {
    return this.#tasks.values().some(({ shim }) => shim?.path === path);
  }

  async #deleteBy(client: TaskClient, found: Task, timeoutMs: number): Promise<void> {
    const { id } = found;
    try {
      if (found.end === undefined) {
        const ended = client.wait({ id });
        ended.catch(() => {}); // awaited below, unless there is nothing to kill
        if (await this.kill(id, SIGKILL))
          await inTime(ended, `the end of container ${id}`, timeoutMs);
      }
      await client.deleteContainer(id, timeoutMs);
    } catch (error) {
      if (codeOf(error) !== "NOT_FOUND") throw error;
    }
  }

  /** Returns what an interrupted start, or a failed delete of an earlier monitor, has left. */
  #left(id: string, program: string): Task | undefined {
    if (!existsSync(this.#bundle(id))) return undefined;
    const shim = readShimFile(this.#bundle(id));
    const left: Task = { id, program: shim?.program ?? program, shim };
    this.#tasks.set(id, left);
    return left;
  }

  /**
   * Connects to the shim of a container whose start was interrupted; undefined: it has none. A second `start`
   * returns the address of a shim that the first one has started.
   */
  async #reach(found: Task, timeoutMs: number): Promise<TaskClient | undefined> {
    try {
      const call = this.#call(found, AbortSignal.timeout(timeoutMs));
      const address = found.shim ?? (await this.#startShim(found, () => startShim(call)));
      return await this.#connect(found, address);
    } catch (error) {
      const fields = { container: found.id, error: messageOf(error) };
      this.#log.info("a container that is removed has no shim that answers", fields);
      return undefined;
    }
  }

  /** Connects to a container's shim. @throws as TaskClient.connect() does. */
  async #connect(found: Task, address: ShimAddress): Promise<TaskClient> {
    const options = { id: found.id, timeoutMs: connectMs };
    const { client, shimPid } = await TaskClient.connect(address, options);
    found.client = client;
    this.#record(found, address, shimPid);
    return client;
  }

  /** Finds the pid of a shim that did not tell it before it had a container: one that hangs must be killed. */
  async #learnPid(created: Task, client: TaskClient): Promise<void> {
    const { id, shim } = created;
    if (shim === undefined || shim.pid !== 0) return;
    const told = await client.shimPid(id, connectMs);
    // A shim's server is a child of this process, which adopts what `start` leaves.
    const pid = told || listenerOf(shim.path, childrenOf("self"));
    if (pid) this.#record(created, shim, pid);
    else this.#log.warn("the pid of a shim is not known", { container: id, path: shim.path });
  }

  /** pid: the shim's own; 0: not known. */
  #record(found: Task, { path, version }: ShimAddress, pid: number): void {
    const pidStartTime = startTime(pid) ?? "";
    const shim = { program: found.program, path, version, pid, pidStartTime };
    const isKnown = found.shim?.pid === pid && found.shim.path === path;
    found.shim = shim;
    if (!isKnown) writeShimFile(this.#bundle(found.id), shim);
  }

  /** Waits for the container's end. */
  #follow(followed: Task, client: TaskClient): void {
    const waiting = client.wait({ id: followed.id }).then(
      ({ exitCode }) => this.#ended(followed, { exitCode, known: true }),
      async (error: unknown) => {
        const fields = { container: followed.id, error: messageOf(error) };
        if (!followed.isRemoved)
          this.#log.warn("a shim does not wait for a container's end, asking again", fields);
        if (isNoAnswer(error)) this.#disconnect(followed);
        else if (!followed.isRemoved) {
          await sleep(retryMs, undefined, { ref: false }); // other calls go on on its connection
        }
        return this.#search(followed);
      },
    );
    waiting.catch(logFailure(this.#log, "following a shim's container failed"));
  }

  /** Connects to a container's shim until it answers or has ended, and follows the container. */
  async #search(searched: Task): Promise<void> {
    const { id, shim } = searched;
    if (shim === undefined) return this.#lost(searched, "its address is not recorded");
    for (let attempt = 0; !searched.isRemoved; attempt++) {
      try {
        const client = searched.client ?? (await this.#connectAgain(searched, shim));
        const exitCode = await client.exitCode({ id }, connectMs);
        if (exitCode === undefined) return this.#follow(searched, client);
        return this.#ended(searched, { exitCode, known: true });
      } catch (error) {
        if (hasEnded(shim, error)) return this.#lost(searched, messageOf(error));
        if (codeOf(error) === "UNAVAILABLE") this.#disconnect(searched);
        const fields = { container: id, error: messageOf(error) };
        if (attempt === 0) this.#log.error("a shim does not answer, retrying", fields);
      }
      await sleep(attempt === 0 ? firstRetryMs : retryMs, undefined, { ref: false });
    }
    this.#ended(searched, { exitCode: 137, known: true });
  }

  /** Drops the connection, so that the next attempt opens another one. */
  #disconnect(task: Task): void {
    task.client?.[Symbol.dispose]();
    task.client = undefined;
  }

  /** Connects to the shim again; clientOf() waits for the attempt. */
  #connectAgain(searched: Task, shim: ShimFile): Promise<TaskClient> {
    const connecting = this.#connect(searched, shim);
    searched.connecting = connecting.then(nothing, nothing);
    return connecting;
  }

  /** Ends a container whose shim has ended. */
  async #lost(lost: Task, why: string): Promise<void> {
    const fields = { container: lost.id, error: why };
    this.#log.error("the shim of a container has ended: killing the container", fields);
    let exitCode = 137;
    try {
      const deleted = await deleteWithoutShim(this.#call(lost, AbortSignal.timeout(connectMs * 4)));
      exitCode = deleted?.exitCode ?? exitCode;
    } catch (error) {
      const failed = { container: lost.id, error: messageOf(error) };
      this.#log.error("cleaning up after a shim failed, the container's delete retries it", failed);
    }
    this.#ended(lost, { exitCode, known: true, problem: `its shim has ended: ${why}` });
  }

  #ended(ended: Task, end: End): void {
    ended.end ??= end;
    this.#onEnd(ended.id);
  }

  /** Kills a shim by its pid, unless that belongs to another process; false: it does not run, or its pid is not known. */
  #killShim({ shim }: Task): boolean {
    if (shim === undefined) return false;
    this.#keeping.delete(shim.path);
    const isRunning = isShimRunning(shim);
    if (isRunning) process.kill(shim.pid, "SIGKILL");
    return isRunning;
  }

  #bundle(id: string): string {
    return join(this.#folder, id);
  }

  #call({ id, program }: Task, signal: AbortSignal): ShimCall {
    return { program, id, bundle: this.#bundle(id), owner: this.#folder, signal };
  }

  #makeBundle({ id, bundle, runtime }: StartRequest): void {
    const folder = this.#bundle(id);
    removeTreeNow(folder);
    mkdirSync(join(folder, "rootfs"), { recursive: true, mode: 0o700 });
    copyFileSync(join(bundle, "config.json"), join(folder, "config.json"));
    // In containerd's bundles `log` is a FIFO. Shims must be able to open it; their errors arrive as answers, too.
    symlinkSync("/dev/null", join(folder, "log"));
    const configPath = runtime.shim?.configPath ?? "";
    // gVisor's shim looks here for `grouping`, which it needs before it is given its options.
    if (configPath !== "") symlinkSync(configPath, join(folder, "config.toml"));
  }
}

function nothing(): void {}
