// Calls of the OCI runtime whose standard streams a container inherits: files and FIFOs only, and
// what the runtime has to say goes to a log file of its own.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import { runtimeArgv, runtimeError, type RuntimeCommand } from "../node/runtime.ts";
import { reap } from "../sys/libc.ts";
import { abortError } from "../sys/process.ts";

export type SpawnOptions = {
  timeoutMs: number;
  /** Whose call it is, for messages: "container abc". */
  what: string;
  /** stdin, stdout, stderr; /dev/null by default. */
  stdio?: [number, number, number];
};

export class Spawner {
  readonly #folder: string;
  readonly #children = new Set<number>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  /**
   * Calls one verb of the runtime and waits for its end.
   * @throws CriError with the runtime's own message; DEADLINE_EXCEEDED after timeoutMs.
   */
  async runtime(runtime: RuntimeCommand, verb: string[], options: SpawnOptions): Promise<void> {
    const logFile = join(this.#folder, `runtime-${randomBytes(6).toString("hex")}.log`);
    const argv = runtimeArgv(runtime, logFile, verb);
    try {
      const exitCode = await this.#run(argv, verb[0]!, options);
      if (exitCode === 0) return;
      const message = (await runtimeError(logFile)) ?? `exit status ${exitCode}`;
      throw new CriError(
        "UNKNOWN",
        `${options.what}: ${runtime.path} ${verb[0]} failed: ${message}`,
      );
    } finally {
      await rm(logFile, { force: true });
    }
  }

  #run(argv: string[], verb: string, options: SpawnOptions): Promise<number> {
    const start = performance.now();
    const signal = AbortSignal.timeout(options.timeoutMs);
    const child = spawn(argv[0]!, argv.slice(1), {
      stdio: options.stdio ?? "ignore",
      detached: true,
    });
    const { pid } = child;
    if (pid !== undefined) this.#children.add(pid);
    const onAbort = () => {
      if (pid !== undefined) process.kill(-pid, "SIGKILL");
    };
    signal.addEventListener("abort", onAbort, { once: true });
    return new Promise((resolve, reject) => {
      const done = () => {
        signal.removeEventListener("abort", onAbort);
        if (pid !== undefined) this.#children.delete(pid);
      };
      child.on("error", (error) => {
        done();
        reject(
          new CriError(
            "FAILED_PRECONDITION",
            `${options.what}: cannot run ${argv[0]}: ${error.message}`,
          ),
        );
      });
      child.on("exit", (exitCode) => {
        done();
        const what = `${options.what}: ${argv[0]} ${verb} (pid ${pid})`;
        if (signal.aborted) reject(abortError(what, signal, performance.now() - start));
        else resolve(exitCode ?? 255);
      });
    });
  }

  /**
   * Reaps children that are nobody's: orphans that a subreaper gets from pods in the host's pid
   * namespace. Not while a call runs: until it ends, a container's init looks like one of them.
   */
  reapStrangers(known: ReadonlySet<number>): void {
    if (this.#children.size > 0) return;
    for (const thread of readdirSync("/proc/self/task")) {
      const children = readFileSync(`/proc/self/task/${thread}/children`, "utf8");
      for (const pid of children.split(" ").filter(Boolean).map(Number)) {
        if (!known.has(pid)) reap(pid);
      }
    }
  }
}
