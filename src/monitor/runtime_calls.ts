// What the monitor asks of the OCI runtime for a container: to make it, to start it, to take it away.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { step } from "../base/failpoints.ts";
import { executes } from "../sys/process.ts";
import type { RemoveRequest, StartRequest } from "./protocol.ts";
import type { Spawner } from "./spawner.ts";
import type { Stdio } from "./stdio.ts";

export class RuntimeCalls {
  readonly #spawner: Spawner;
  readonly #log: Log;

  constructor(spawner: Spawner, log: Log) {
    this.#spawner = spawner;
    this.#log = log;
  }

  /** Returns the pid of its init, which waits for start. */
  async create(request: StartRequest, stdio: Stdio): Promise<number> {
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

  /** Returns when its init executes the container's program. */
  start({ id, runtime, timeoutMs }: StartRequest, pid: number): Promise<void> {
    return step("runtime-start", () =>
      executes(pid, () => this.#spawner.runtime(runtime, ["start", id], { timeoutMs })),
    );
  }

  /** The cgroup goes, and with it every process that is left in it. */
  async delete({ id, runtime, timeoutMs }: RemoveRequest): Promise<void> {
    await step("runtime-delete", () =>
      this.#spawner.runtime(runtime, ["delete", "--force", id], { timeoutMs }),
    );
  }

  /** What fails now is found again when it is removed, or by the daemon's sweep of orphans. */
  async deleteIfPossible(request: RemoveRequest): Promise<void> {
    try {
      await this.delete(request);
    } catch (error) {
      this.#log.warn("runtime delete failed", { container: request.id, error: messageOf(error) });
    }
  }
}
