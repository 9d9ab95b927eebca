// Starts unpack helpers (unpack_helper.ts) in the daemon, and runs one job at a time in each.
import type { ChildProcessByStdio } from "node:child_process";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { setImmediate as nextTurn } from "node:timers/promises";
import { runningProgram } from "../base/build.ts";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { spawn } from "../sys/children.ts";
import { withAddressOption } from "../sys/engine_options.ts";
import { giveWay, killGroup, offerToOomKiller } from "../sys/process.ts";
import { endWithin, keepEnd } from "../sys/supervise.ts";
import { Semaphore } from "../base/semaphore.ts";
import type { WhiteoutForm } from "./whiteouts.ts";
import type { JobResults, UnpackAnswer, UnpackJob } from "./unpack_jobs.ts";

type JobOptions = { signal: AbortSignal; onBytes?: (bytes: number) => void };

/** Reuses idle helpers; all of them end with the pool. */
export class UnpackPool implements AsyncDisposable {
  readonly #whiteouts: WhiteoutForm;
  readonly #idle: Helper[] = [];
  readonly #all = new Set<Helper>();
  readonly #starts = new Semaphore(1, "the start of an unpack helper");

  constructor(whiteouts: WhiteoutForm) {
    this.#whiteouts = whiteouts;
  }

  async run<Kind extends UnpackJob["kind"]>(
    job: UnpackJob & { kind: Kind },
    options: JobOptions,
  ): Promise<JobResults[Kind]> {
    throwIfAborted(job.kind, options.signal);
    const helper = this.#idle.pop() ?? (await this.#start(options.signal));
    const result = await helper.run(job, options);
    this.#idle.push(helper); // not after a failure: its state is unknown then
    return result as JobResults[Kind];
  }

  /** Starts one helper per turn of the event loop, since spawning blocks it. */
  async #start(signal: AbortSignal): Promise<Helper> {
    return await this.#starts.run(signal, async () => {
      await nextTurn();
      const helper = new Helper(this.#whiteouts);
      this.#all.add(helper);
      return helper;
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#all].map((helper) => helper.end()));
  }
}

const stderrBytesMax = 4096;
/** From the end of a helper's input to its exit. */
const endMs = 1000;

/** Helpers may use all cores; the daemon must still be scheduled at once. */
const niceness = 10;

function parseAnswer(line: string): UnpackAnswer {
  try {
    return trustedJsonValue(line) as UnpackAnswer;
  } catch {
    const message = `the unpack helper wrote an invalid answer: ${line}`;
    return { kind: "failed", code: "INTERNAL", message };
  }
}

class Helper {
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #exited: Promise<void>;
  #stderr: () => string;
  #onAnswer: ((answer: UnpackAnswer | undefined) => void) | undefined;
  #hasExited = false;

  constructor(whiteouts: WhiteoutForm) {
    const { argv, argv0 } = runningProgram();
    const args = [...argv.slice(1), "unpack", whiteouts];
    // Not detached: that would start a session, and between sessions the kernel may ignore niceness
    // (sched(7), autogroup). The helper makes itself the leader of a process group for its stream processors.
    const env = withAddressOption(process.env);
    this.#child = spawn(argv[0]!, args, { argv0, env, stdio: ["pipe", "pipe", "pipe"] });
    // Set by the parent, so that it holds from the child's start.
    if (this.#child.pid !== undefined) {
      giveWay(this.#child.pid, niceness);
      offerToOomKiller(this.#child.pid);
    }
    this.#child.stdin.on("error", () => {}); // the helper's exit is reported instead
    this.#stderr = keepEnd(this.#child.stderr, stderrBytesMax);
    const lines = createInterface({ input: this.#child.stdout });
    lines.on("line", (line) => this.#onAnswer?.(parseAnswer(line)));
    this.#exited = new Promise((resolve) => {
      const onExit = (error?: Error) => {
        this.#kill(); // the rest of its group, in case it exited by itself
        this.#hasExited = true;
        if (error !== undefined) this.#stderr = () => error.message;
        this.#onAnswer?.(undefined);
        resolve();
      };
      this.#child.once("error", onExit);
      this.#child.once("close", () => onExit());
    });
  }

  async run(
    job: UnpackJob,
    { signal, onBytes }: JobOptions,
  ): Promise<JobResults[UnpackJob["kind"]]> {
    const kill = () => this.#kill();
    signal.addEventListener("abort", kill, { once: true });
    if (signal.aborted) kill(); // it was cancelled during the start
    try {
      const answer = await new Promise<UnpackAnswer | undefined>((resolve) => {
        this.#onAnswer = (answer) => {
          if (answer?.kind === "progress") onBytes?.(answer.bytes);
          else resolve(answer);
        };
        if (this.#hasExited) resolve(undefined);
        else this.#child.stdin.write(`${jsonText(job)}\n`);
      });
      if (answer?.kind === "done") return answer.result;
      if (signal.aborted) {
        await this.#exited; // afterwards nothing writes into the folder
        throw abortError("unpacking", signal);
      }
      if (answer?.kind === "failed") throw new CriError(answer.code, answer.message);
      const why = this.#stderr().trim();
      const guess = "it was killed, probably by the kernel's OOM killer (see dmesg)";
      throw new CriError("INTERNAL", `the unpack helper ended: ${why || guess}`);
    } finally {
      signal.removeEventListener("abort", kill);
      this.#onAnswer = undefined;
    }
  }

  #kill(): void {
    if (this.#child.pid === undefined || this.#hasExited) return;
    killGroup(this.#child.pid);
    this.#child.kill("SIGKILL"); // it may not lead its group yet
  }

  async end(): Promise<void> {
    this.#child.stdin.end();
    await endWithin(this.#exited, endMs, () => this.#kill());
  }
}
