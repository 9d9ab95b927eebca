// Starts execs by the shim of their container, which copies their streams from and to FIFOs.
import { constants, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { codeOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { isRuncShim } from "../base/shim_program.ts";
import type { TaskClient } from "../shim/task_client.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { mkfifo } from "../sys/path.ts";
import { startTime } from "../sys/process.ts";
import { NoAnswer } from "../sys/ttrpc_calls.ts";
import { markAsRlimit, newMark } from "../sys/process_mark.ts";
import type { CapturedStreams, ExecStarter, RunningExec } from "./exec.ts";
import { killTree, type ExecTree } from "./exec_tree.ts";
import { processFileOf } from "./oci_exec.ts";
import type { ExecSubject, StartExecRequest } from "./protocol.ts";
import type { RunRecord } from "./record_schemas.ts";
import type { ShimTasks } from "./shim_tasks.ts";

const SIGKILL = 9;
/** Limit for a shim to forget an exec that has ended. */
const deleteMs = 10_000;

/** Paths of FIFOs; "": none. */
type Streams = { stdin: string; stdout: string; stderr: string; terminal: boolean };

export class ShimExecs implements ExecStarter<Streams> {
  readonly isCopied = true;
  readonly #folder: string;
  readonly #tasks: ShimTasks;

  /** folder: the monitor's. */
  constructor(folder: string, tasks: ShimTasks) {
    this.#folder = folder;
    this.#tasks = tasks;
  }

  openCaptured({ key }: ExecSubject): CapturedStreams<Streams> {
    using opened = new DisposableStack();
    const open = (name: string) => {
      const path = join(this.#folder, `exec-${key}.${name}`);
      mkfifo(path, 0o600);
      opened.defer(() => rmSync(path, { force: true }));
      // Both ways first: the reader sees no end before the shim has opened the FIFO.
      opened.use(Descriptor.open(path, constants.O_RDWR));
      const reader = opened.use(Descriptor.open(path, constants.O_RDONLY | constants.O_NONBLOCK));
      return { path, reader };
    };
    const [stdout, stderr] = [open("stdout"), open("stderr")];
    const readers = { stdout: stdout.reader.release(), stderr: stderr.reader.release() };
    const streams = { stdin: "", stdout: stdout.path, stderr: stderr.path, terminal: false };
    const kept = opened.move();
    return { streams, readers, [Symbol.dispose]: () => kept.dispose() };
  }

  openCallers(request: StartExecRequest): Disposable & { streams: Streams } {
    const { stdin, stdout, stderr, terminal = false } = request;
    // runc's shim opens an output that is not wanted too, unless there is a terminal.
    const unwanted = terminal ? "" : "/dev/null";
    const outputs = { stdout: stdout || unwanted, stderr: stderr || unwanted };
    return { streams: { stdin, ...outputs, terminal }, [Symbol.dispose]: () => {} };
  }

  /** Tells a later monitor which processes are this exec's (left_calls.ts); returns how to take it back. */
  #recordMark(key: string, mark: number | undefined): () => void {
    if (mark === undefined) return () => {};
    const file = join(this.#folder, processFileOf(key, mark));
    writeFileSync(file, "", { mode: 0o600 });
    return () => rmSync(file, { force: true });
  }

  async start(
    container: RunRecord,
    request: ExecSubject,
    options: { streams: Streams; timeoutMs: number; signal: AbortSignal },
  ): Promise<RunningExec> {
    const process = { id: request.id, exec_id: request.key };
    const { streams, timeoutMs, signal } = options;
    const client = await this.#tasks.clientOf(request.id, timeoutMs);
    throwIfAborted(`exec in container ${request.id}`, signal);
    const isOnHost = isRuncShim(container.runtime.shim!.type);
    const mark = isOnHost ? newMark() : undefined;
    const type_url = "types.containerd.io/opencontainers/runtime-spec/1/Process";
    const spec = { type_url, value: Buffer.from(markedProcess(request.process, mark)) };
    const forgetMark = this.#recordMark(request.key, mark);
    const forget = () => deleteExec(client, process);
    try {
      await client.exec({ ...process, ...streams, spec }, timeoutMs);
    } catch (error) {
      forgetMark();
      throw error;
    }
    try {
      const exited = client.wait(process);
      exited.then(forgetMark, forgetMark).catch(() => {}); // the caller awaits it, unless the start fails
      const pid = await step("exec-start", () => client.start(process, timeoutMs));
      const tree = isOnHost ? { leader: pid, mark, cgroup: container.cgroup } : undefined;
      return {
        process: { pid, pidStartTime: startTime(pid) ?? "" },
        exited,
        kill: () => kill(client, process, tree),
        close: forget,
      };
    } catch (error) {
      const ended = kill(client, process, undefined).then(forgetMark, forgetMark);
      const forgotten = ended.then(forget);
      if (!(error instanceof NoAnswer)) await forgotten;
      throw error;
    }
  }
}

type Process = { id: string; exec_id: string };

/** Adds a mark to an OCI process in JSON, unless it has such a limit of its own. */
export function markedProcess(process: string, mark: number | undefined): string {
  if (mark === undefined || process.includes('"RLIMIT_RTTIME"')) return process;
  const limit = markAsRlimit(mark);
  // Within a JSON string the quotes would be escaped.
  const limits = '"rlimits":[';
  if (!process.includes(limits)) return process.replace("{", () => `{${limits}${limit}],`);
  const isEmpty = process.includes(`${limits}]`);
  return process.replace(limits, () => limits + limit + (isEmpty ? "" : ","));
}

/** tree: its processes, where they are of this kernel. */
async function kill(
  client: TaskClient,
  process: Process,
  tree: ExecTree | undefined,
): Promise<void> {
  if (tree !== undefined) await killTree(tree);
  try {
    await client.kill({ ...process, signal: SIGKILL });
  } catch (error) {
    if (!["NOT_FOUND", "FAILED_PRECONDITION"].includes(codeOf(error))) throw error; // has ended
  }
}

/** Best effort: the shim forgets the exec with its container. */
async function deleteExec(client: TaskClient, process: Process): Promise<void> {
  await client.delete(process, deleteMs).catch(() => {});
}

/** Kills an exec that an earlier monitor has started; it may have ended. */
export async function endShimExec(tasks: ShimTasks, process: Process): Promise<void> {
  const client = await tasks.clientOf(process.id);
  try {
    await client.kill({ ...process, signal: SIGKILL });
  } catch (error) {
    if (!["NOT_FOUND", "FAILED_PRECONDITION"].includes(codeOf(error))) throw error;
  }
  await deleteExec(client, process);
}
