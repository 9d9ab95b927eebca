// Calls the OCI runtime's create, start and delete for a container.
import { join } from "node:path";
import { codeOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { executes } from "../sys/process.ts";
import { execFifo, release } from "./exec_fifo.ts";
import { startedChild } from "./pid_file.ts";
import type { RemoveRequest, StartRequest } from "./protocol.ts";
import type { Spawner } from "./spawner.ts";
import type { Stdio } from "./stdio.ts";

export class RuntimeCalls {
  readonly #spawner: Spawner;

  constructor(spawner: Spawner) {
    this.#spawner = spawner;
  }

  /** Creates the container; returns the pid of its init, which waits for start(). */
  async create(request: StartRequest, stdio: Stdio, signal: AbortSignal): Promise<number> {
    const pidFile = join(request.stdio, "pid");
    try {
      const verb = ["create", "--bundle", request.bundle, "--pid-file", pidFile];
      await this.#spawner.runtime(request.runtime, [...verb, ...stdio.args, request.id], {
        timeoutMs: request.timeoutMs,
        signal,
        stdio: stdio.child,
      });
    } catch (error) {
      await stdio.created().catch(() => {}); // without a terminal it fails too; the first error counts
      throw error;
    }
    await stdio.created();
    return startedChild(pidFile);
  }

  /** Starts a created container; returns when its init executes the container's program. */
  start(
    { id, runtime, timeoutMs }: StartRequest,
    pid: number,
    signal?: AbortSignal,
  ): Promise<void> {
    return step("runtime-start", () =>
      executes(pid, async () => {
        const fifo = execFifo(runtime, id);
        if (fifo !== undefined) return release(fifo, pid, timeoutMs);
        await this.#spawner.runtime(runtime, ["start", id], { timeoutMs, signal });
      }),
    );
  }

  /**
   * Removes the container and its cgroup, with every process that is left in the cgroup. Tries without --force first,
   * with which runc waits for 0.1 s before it looks whether the container has ended.
   */
  async delete({ id, runtime, timeoutMs }: RemoveRequest): Promise<void> {
    const call = (...verb: string[]) => this.#spawner.runtime(runtime, verb, { timeoutMs });
    await step("runtime-delete", async () => {
      try {
        await call("delete", id);
      } catch (error) {
        if (codeOf(error) !== "UNKNOWN") throw error;
        await call("delete", "--force", id);
      }
    });
  }
}
