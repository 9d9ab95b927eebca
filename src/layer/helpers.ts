// The daemon's side of the unpacking helpers: a few processes, one job each at a time.
import type { ChildProcessByStdio } from "node:child_process";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { setImmediate as nextTurn } from "node:timers/promises";
import { ownProgram } from "../base/build.ts";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { clipStart } from "../base/text.ts";
import { spawn } from "../sys/children.ts";
import { giveWay, killGroup, offerToOomKiller } from "../sys/process.ts";
import { Semaphore } from "../base/semaphore.ts";
import type { WhiteoutForm } from "./whiteouts.ts";
import type { JobResults, UnpackAnswer, UnpackJob } from "./unpack.ts";

export type JobOptions = { signal: AbortSignal; onBytes?: (bytes: number) => void };

/** Processes live as long as this object; at most one a job that runs. */
export class UnpackHelpers implements AsyncDisposable {
  readonly #argv: string[];
  readonly #idle: Helper[] = [];
  readonly #all = new Set<Helper>();
  readonly #starts = new Semaphore(1);

  /** whiteouts: how layers mark what they hide. */
  constructor(whiteouts: WhiteoutForm) {
    this.#argv = [...ownProgram(), "unpack", whiteouts];
  }

  async run<Kind extends UnpackJob["kind"]>(
    job: UnpackJob & { kind: Kind },
    options: JobOptions,
  ): Promise<JobResults[Kind]> {
    throwIfAborted(job.kind, options.signal);
    const helper = this.#idle.pop() ?? (await this.#start(options.signal));
    const result = await helper.run(job, options);
    this.#idle.push(helper); // one that failed is left out: it may be in any state
    return result as JobResults[Kind];
  }

  /** One in a turn of the loop, which stands still until the new process runs. */
  async #start(signal: AbortSignal): Promise<Helper> {
    return await this.#starts.run(signal, async () => {
      await nextTurn();
      const helper = new Helper(this.#argv);
      this.#all.add(helper);
      return helper;
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#all].map((helper) => helper.end()));
  }
}

const stderrBytesMax = 4096;

/** Several of these may have work for all cores: the daemon must still be given one at once. */
const niceness = 10;

/** A helper that says something else has lost its way. */
function answerOf(line: string): UnpackAnswer {
  try {
    return jsonValue(line) as UnpackAnswer;
  } catch {
    return { kind: "failed", code: "INTERNAL", message: `the unpacking helper said: ${line}` };
  }
}

class Helper {
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #exited: Promise<void>;
  #stderr = "";
  #onAnswer: ((answer: UnpackAnswer | undefined) => void) | undefined;
  #isGone = false;

  constructor(argv: string[]) {
    // Not detached: that is a session, and between sessions the kernel may not look at niceness (sched(7),
    // autogroup). It makes itself a process group, with the stream processors that it starts.
    this.#child = spawn(argv[0]!, argv.slice(1), { stdio: ["pipe", "pipe", "pipe"] });
    // From here, so that it begins so.
    if (this.#child.pid !== undefined) {
      giveWay(this.#child.pid, niceness);
      offerToOomKiller(this.#child.pid);
    }
    this.#child.stdin.on("error", () => {}); // its exit tells
    this.#child.stderr.on("data", (chunk: Buffer) => {
      this.#stderr = clipStart(this.#stderr + chunk.toString("utf8"), stderrBytesMax);
    });
    const lines = createInterface({ input: this.#child.stdout });
    lines.on("line", (line) => this.#onAnswer?.(answerOf(line)));
    this.#exited = new Promise((resolve) => {
      const gone = (error?: Error) => {
        this.#kill(); // the rest of the group, should it have ended by itself
        this.#isGone = true;
        if (error !== undefined) this.#stderr = error.message;
        this.#onAnswer?.(undefined);
        resolve();
      };
      this.#child.once("error", gone);
      this.#child.once("close", () => gone());
    });
  }

  async run(
    job: UnpackJob,
    { signal, onBytes }: JobOptions,
  ): Promise<JobResults[UnpackJob["kind"]]> {
    const kill = () => this.#kill();
    signal.addEventListener("abort", kill, { once: true });
    if (signal.aborted) kill(); // while it was started
    try {
      const answer = await new Promise<UnpackAnswer | undefined>((resolve) => {
        this.#onAnswer = (answer) => {
          if (answer?.kind === "progress") onBytes?.(answer.bytes);
          else resolve(answer);
        };
        if (this.#isGone) resolve(undefined);
        else this.#child.stdin.write(`${jsonText(job)}\n`);
      });
      if (answer?.kind === "done") return answer.result;
      if (signal.aborted) {
        await this.#exited; // so that nothing writes into the folder any more
        throw abortError("unpacking", signal);
      }
      if (answer?.kind === "failed") throw new CriError(answer.code, answer.message);
      throw new CriError(
        "INTERNAL",
        `the unpacking helper ended: ${this.#stderr.trim() || "it was killed, as the kernel does where memory runs out (dmesg tells)"}`,
      );
    } finally {
      signal.removeEventListener("abort", kill);
      this.#onAnswer = undefined;
    }
  }

  #kill(): void {
    if (this.#child.pid === undefined || this.#isGone) return;
    killGroup(this.#child.pid);
    this.#child.kill("SIGKILL"); // which has begun no group yet
  }

  async end(): Promise<void> {
    this.#child.stdin.end();
    const timer = setTimeout(() => this.#kill(), 1000);
    await this.#exited;
    clearTimeout(timer);
  }
}
