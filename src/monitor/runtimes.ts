// Chooses what runs a container and its execs: an OCI runtime's command line (runtime_calls.ts, oci_exec.ts) or
// a shim (shim_tasks.ts, shim_exec.ts).
import { existsSync } from "node:fs";
import { join } from "node:path";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { isRuncShim } from "../base/shim_program.ts";
import { endOf, signalInit, type End } from "./init_process.ts";
import type { ExecStarter } from "./exec.ts";
import { removeLeftState } from "./left_state.ts";
import { endExec, OciExecs } from "./oci_exec.ts";
import { shimBundles, type EndExecRequest, type RemoveRequest } from "./protocol.ts";
import type { RunRecord, StartRequest } from "./record_schemas.ts";
import { RuntimeCalls } from "./runtime_calls.ts";
import type { ShimExecs } from "./shim_exec.ts";
import type { ShimTasks } from "./shim_tasks.ts";
import type { Spawner } from "./spawner.ts";
import type { Stdio } from "./stdio.ts";

type Shims = { tasks: ShimTasks; execs: ShimExecs };
type RuntimeOf = Pick<RunRecord, "runtime">;

export class Runtimes {
  readonly #oci: RuntimeCalls;
  readonly #log: Log;
  readonly #folder: string;
  readonly #onEnd: (id: string) => void;
  /** Deletes under way, by id: a failed start and the container's removal may delete it at the same time. */
  readonly #deleting = new Map<string, Promise<void>>();
  readonly execs: OciExecs;
  /** Loaded for the first container with a shim. */
  #loading: Promise<Shims> | undefined;
  #shims: ShimTasks | undefined;

  /** folder: the monitor's. onEnd: called when endOf() has news of a container that no SIGCHLD announces. */
  constructor(options: {
    folder: string;
    spawner: Spawner;
    log: Log;
    onEnd: (id: string) => void;
  }) {
    this.#oci = new RuntimeCalls(options.spawner);
    this.execs = new OciExecs(options.folder, options.spawner);
    this.#log = options.log;
    this.#folder = options.folder;
    this.#onEnd = options.onEnd;
  }

  /** Returns the shims' containers, for calls that only shims have. */
  async shims(): Promise<ShimTasks> {
    this.#loading ??= this.#load();
    return (await this.#loading).tasks;
  }

  async #load(): Promise<Shims> {
    const { ShimTasks } = await import("./shim_tasks.ts");
    const { ShimExecs } = await import("./shim_exec.ts");
    const folder = shimBundles(this.#folder);
    const tasks = new ShimTasks({ folder, log: this.#log, onEnd: this.#onEnd });
    this.#shims = tasks;
    return { tasks, execs: new ShimExecs(this.#folder, tasks) };
  }

  /** Returns what starts the execs of a container. */
  async execsOf({ runtime }: RuntimeOf): Promise<ExecStarter<unknown>> {
    if (runtime.shim === undefined) return this.execs;
    this.#loading ??= this.#load();
    return (await this.#loading).execs;
  }

  /** Kills an exec that an earlier monitor has started; it may have ended. */
  async endExec(container: RunRecord, { key, ...exec }: EndExecRequest): Promise<void> {
    const { shim } = container.runtime;
    if (shim === undefined || isRuncShim(shim.type)) await endExec(exec, container.cgroup);
    if (shim === undefined) return;
    const { endShimExec } = await import("./shim_exec.ts");
    await endShimExec(await this.shims(), { id: container.id, exec_id: key ?? "" });
  }

  /** Creates the container; returns the pid of its init, which waits for start(). */
  async create(request: StartRequest, stdio: Stdio, signal: AbortSignal): Promise<number> {
    if (request.runtime.shim === undefined) return this.#oci.create(request, stdio, signal);
    await stdio.created();
    return (await this.shims()).create(request);
  }

  /** Starts a created container; returns its init's pid when it executes the container's program. pid: create()'s. */
  async start(request: StartRequest, pid: number, signal?: AbortSignal): Promise<number> {
    if (request.runtime.shim !== undefined) return (await this.shims()).start(request, pid);
    await this.#oci.start(request, pid, signal);
    return pid;
  }

  /** Follows a container that an earlier monitor has started; children are followed by check(). */
  async adopt(record: RunRecord): Promise<void> {
    if (record.runtime.shim !== undefined) (await this.shims()).adopt(record);
  }

  /** Returns how a container's init has ended; undefined while it runs. */
  endOf(record: RunRecord, pin: string): End | undefined {
    if (record.runtime.shim !== undefined) return this.#shims?.endOf(record.id);
    return endOf(record, pin);
  }

  /** Sends a signal to the container's init; false when it has ended. */
  async kill(record: RunRecord, signal: number): Promise<boolean> {
    if (record.runtime.shim === undefined) return signalInit(record, signal);
    return (await this.shims()).kill(record.id, signal);
  }

  /** Returns true for a container that a failed delete, or a monitor that was killed, has left. */
  isLeft({ id, runtime }: Pick<RemoveRequest, "id"> & RuntimeOf): boolean {
    const folder = runtime.shim === undefined ? runtime.root : shimBundles(this.#folder);
    return existsSync(join(folder, id));
  }

  /** Removes the container with every process that is left in it; joins a delete of it that is under way. */
  delete(request: RemoveRequest): Promise<void> {
    const { id } = request;
    const isDeleted =
      this.#deleting.get(id) ?? this.#delete(request).finally(() => this.#deleting.delete(id));
    this.#deleting.set(id, isDeleted);
    return isDeleted;
  }

  async #delete(request: RemoveRequest): Promise<void> {
    if (request.runtime.shim === undefined) {
      await this.#oci.delete(request);
      return this.#removeLeft(request);
    }
    return (await this.shims()).delete(request);
  }

  #removeLeft({ id, runtime }: RemoveRequest): void {
    try {
      removeLeftState(join(runtime.root, id));
    } catch (error) {
      this.#log.warn("files of a runtime stay", { container: id, error: messageOf(error) });
    }
  }

  /** Best effort, for a failed start: the container's removal and the daemon's sweep of orphans delete it later. */
  async deleteIfPossible(request: RemoveRequest): Promise<void> {
    if (!this.isLeft(request)) return; // the runtime did not get so far, and may hang again
    try {
      await this.delete(request);
    } catch (error) {
      const fields = { container: request.id, error: messageOf(error) };
      this.#log.warn("runtime delete of a container failed, its removal retries it", fields);
    }
  }
}
