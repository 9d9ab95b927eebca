// Calls of the OCI runtime whose standard streams a container inherits: files and FIFOs only, and
// what the runtime has to say goes to a log file of its own.
import { randomBytes } from "node:crypto";
import { rm, statfs } from "node:fs/promises";
import { join } from "node:path";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import { runtimeArgv, runtimeError, type RuntimeCommand } from "../node/oci_runtime.ts";
import { spawn } from "../sys/children.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { killedMs, killGroup, unkillable } from "../sys/process.ts";
import { withMark } from "../sys/process_mark.ts";

export type SpawnOptions = {
  timeoutMs: number;
  /** Ends the call before its time. */
  signal?: AbortSignal;
  /** Of the runtime's process and all its descendants (sys/process_mark.ts). */
  mark?: number;
  /** /dev/null by default. */
  stdio?: ChildStdio;
};

/** stdin, stdout and stderr of a runtime call; they stay the caller's. */
export type ChildStdio = readonly [Descriptor, Descriptor, Descriptor];

export class Spawner {
  readonly #folder: string;
  /** When each of the starts that have not ended began, by performance.now(), the oldest first. */
  readonly #starts = new Map<symbol, number>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  get busy(): boolean {
    return this.#starts.size > 0;
  }

  /** Since when processes may have come whose pids nobody knows yet; undefined: all are known. */
  get startingSince(): number | undefined {
    return this.#starts.values().next().value;
  }

  /** A process is about to come; until the disposal its pid must have become known. */
  starting(): Disposable {
    const start = Symbol();
    this.#starts.set(start, performance.now());
    return {
      [Symbol.dispose]: () => {
        this.#starts.delete(start);
      },
    };
  }

  /**
   * Calls one verb of the runtime and waits for its end.
   * @throws CriError with the runtime's own message; DEADLINE_EXCEEDED after timeoutMs.
   */
  async runtime(runtime: RuntimeCommand, verb: string[], options: SpawnOptions): Promise<void> {
    const logFile = join(this.#folder, `runtime-${randomBytes(6).toString("hex")}.log`);
    const argv = runtimeArgv(runtime, logFile, verb);
    using _ = this.starting();
    try {
      const exitCode = await this.#run(argv, verb[0]!, options);
      if (exitCode === 0) return;
      const told = (await runtimeError(logFile)) ?? `exit status ${exitCode}`;
      const message = told + (await littleSpace(this.#folder));
      throw new CriError("UNKNOWN", `${runtime.path} ${verb[0]}: ${message}`);
    } finally {
      await rm(logFile, { force: true });
    }
  }

  #run(argv: string[], verb: string, options: SpawnOptions): Promise<number> {
    const start = performance.now();
    const late = AbortSignal.timeout(options.timeoutMs);
    const signal = options.signal === undefined ? late : AbortSignal.any([options.signal, late]);
    throwIfAborted(`${argv[0]} ${verb}`, signal);
    const stdio = options.stdio?.map(({ fd }) => fd) ?? "ignore";
    const child = withMark(options.mark, () =>
      spawn(argv[0]!, argv.slice(1), { stdio, detached: true }),
    );
    const { pid } = child;
    return new Promise((resolve, reject) => {
      let stuck: ReturnType<typeof setTimeout> | undefined;
      const onAbort = () => {
        if (pid !== undefined) killGroup(pid);
        stuck = setTimeout(() => reject(unkillable(argv[0]!, pid, signal)), killedMs);
      };
      signal.addEventListener("abort", onAbort, { once: true });
      const done = () => {
        clearTimeout(stuck);
        signal.removeEventListener("abort", onAbort);
      };
      child.on("error", (error) => {
        done();
        reject(new CriError("FAILED_PRECONDITION", `cannot run ${argv[0]}: ${error.message}`));
      });
      child.on("exit", (exitCode) => {
        done();
        const what = `${argv[0]} ${verb} (pid ${pid})`;
        if (signal.aborted) reject(abortError(what, signal, performance.now() - start));
        else resolve(exitCode ?? 255);
      });
    });
  }
}

/** Below this a full disk is the likely cause, though the runtime has removed its own files again. */
const littleBytes = 128 << 10;

/** Why a runtime may have failed, and been unable to tell. */
async function littleSpace(folder: string): Promise<string> {
  const { bavail, bsize, ffree, files } = await statfs(folder);
  if (bavail * bsize < littleBytes || (files > 0 && ffree === 0)) {
    return ` (no space left on the disk of ${folder}: ${bavail * bsize} bytes, ${ffree} inodes)`;
  }
  return "";
}
