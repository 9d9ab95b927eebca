// Calls a shim's Task service (containerd.task.v2.Task or v3, which have the same messages) over ttrpc.
import { setTimeout as sleep } from "node:timers/promises";
import { codeOf } from "../base/errors.ts";
import { encodeMessage, type Encoder } from "../base/protobuf.ts";
import { task } from "../proto/task.js";
import type {
  CreateTaskRequest,
  ExecProcessRequest,
  KillRequest,
  ProcessRequest,
} from "../proto/task_types.ts";
import { NoAnswer } from "../sys/ttrpc_calls.ts";
import { connectTtrpc, type TtrpcClient } from "../sys/ttrpc_client.ts";
import { shimNamespace, type ShimAddress } from "./bootstrap.ts";

/** Limit for calls that shims answer from memory. */
const quickMs = 10_000;
const deletePausesMs = [50, 200, 800];

export type TaskEnd = { exitCode: number; exitedAtNs: bigint };

export class TaskClient implements Disposable {
  readonly #client: TtrpcClient;
  #version: number;

  private constructor(client: TtrpcClient, version: number) {
    this.#client = client;
    this.#version = version;
  }

  /**
   * Connects to a shim and checks that it answers; shimPid: its own, 0 where it does not tell, as some do not before
   * they have a container.
   * @throws CriError UNAVAILABLE when nobody listens, DEADLINE_EXCEEDED when the shim does not answer.
   */
  static async connect(
    { path, version }: ShimAddress,
    { id, timeoutMs }: { id: string; timeoutMs: number },
  ): Promise<{ client: TaskClient; shimPid: number }> {
    const options = { timeoutMs, onClose: () => {} };
    const client = new TaskClient(await connectTtrpc(path, options), version);
    try {
      return { client, shimPid: await client.#greet(id, timeoutMs) };
    } catch (error) {
      client[Symbol.dispose]();
      throw error;
    }
  }

  /** Returns the shim's pid once it has the container; 0 where it does not tell. Best effort. */
  async shimPid(id: string, timeoutMs: number): Promise<number> {
    return this.#greet(id, timeoutMs).catch(() => 0);
  }

  /** Returns the shim's pid; falls back to the other version of the service, since a shim may state a wrong one. */
  async #greet(id: string, timeoutMs: number): Promise<number> {
    const payload = encodeMessage(task.ConnectRequest, { id });
    const greet = async () =>
      task.ConnectResponse.decode(await this.call("Connect", payload, timeoutMs)).shim_pid;
    try {
      return await greet();
    } catch (error) {
      if (codeOf(error) === "NOT_FOUND") return 0; // it answers, but not for a container that it lacks
      if (codeOf(error) !== "UNIMPLEMENTED") throw error;
    }
    this.#version = this.#version === 3 ? 2 : 3;
    return greet();
  }

  /** Returns the pid of the container's first process, of its virtual machine's monitor, or of the shim. */
  async create(request: CreateTaskRequest, timeoutMs: number): Promise<number> {
    const payload = encodeMessage(task.CreateTaskRequest, request);
    return task.CreateTaskResponse.decode(await this.call("Create", payload, timeoutMs)).pid;
  }

  /** Starts the container, or the exec that exec() has added; returns its pid. */
  async start(process: ProcessRequest, timeoutMs: number): Promise<number> {
    const payload = encodeMessage(task.ProcessRequest, process);
    return task.StartResponse.decode(await this.call("Start", payload, timeoutMs)).pid;
  }

  /** Waits for a process's end, without a deadline. @throws NoAnswer when the shim ends first. */
  async wait(process: ProcessRequest): Promise<TaskEnd> {
    const answer = await this.call("Wait", encodeMessage(task.ProcessRequest, process), 0);
    const { exit_status: exitCode, exited_at } = task.WaitResponse.decode(answer);
    const { seconds, nanos } = exited_at ?? {};
    const exitedAtNs = BigInt(String(seconds ?? 0)) * 1_000_000_000n + BigInt(nanos ?? 0);
    return { exitCode, exitedAtNs };
  }

  /** Removes a process that has ended. */
  async delete(process: ProcessRequest, timeoutMs: number): Promise<void> {
    await this.#send("Delete", task.ProcessRequest, process, timeoutMs);
  }

  /**
   * Removes a container that has ended. Retries what a shim refuses: gVisor's reports an end some time before it can
   * delete the container.
   */
  async deleteContainer(id: string, timeoutMs: number): Promise<void> {
    for (const pauseMs of deletePausesMs) {
      try {
        return await this.delete({ id }, timeoutMs);
      } catch (error) {
        if (error instanceof NoAnswer || codeOf(error) === "NOT_FOUND") throw error;
      }
      await sleep(pauseMs);
    }
    await this.delete({ id }, timeoutMs);
  }

  /** Adds a process to the container; start() starts it. */
  async exec(request: ExecProcessRequest, timeoutMs: number): Promise<void> {
    await this.#send("Exec", task.ExecProcessRequest, request, Math.min(timeoutMs, quickMs));
  }

  async kill(request: KillRequest): Promise<void> {
    await this.#send("Kill", task.KillRequest, request);
  }

  async closeStdin(process: ProcessRequest): Promise<void> {
    await this.#send("CloseIO", task.CloseIORequest, { ...process, stdin: true });
  }

  /** Returns the exit code of a process that has ended; undefined while it has not. */
  async exitCode(process: ProcessRequest, timeoutMs: number): Promise<number | undefined> {
    const payload = encodeMessage(task.ProcessRequest, process);
    const answer = task.StateResponse.decode(await this.call("State", payload, timeoutMs));
    return answer.status === task.Status.STOPPED ? answer.exit_status : undefined;
  }

  /** Ends the shim, unless it has containers left. */
  async shutdown(id: string): Promise<void> {
    await this.#send("Shutdown", task.ShutdownRequest, { id });
  }

  async #send<Request>(
    method: string,
    type: Encoder<Request>,
    request: Request,
    timeoutMs = quickMs,
  ): Promise<void> {
    await this.call(method, encodeMessage(type, request), timeoutMs);
  }

  /** Calls any method; timeoutMs 0: without a deadline. @throws as TtrpcCalls.call() does. */
  async call(method: string, payload: Uint8Array, timeoutMs: number): Promise<Uint8Array> {
    const metadata = { "containerd-namespace-ttrpc": shimNamespace };
    const service = `containerd.task.v${this.#version}.Task`;
    try {
      return await this.#client.call({ service, method, payload, timeoutMs, metadata });
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error;
      const message = `the shim did not answer: ${error.message}`;
      throw new NoAnswer(error.code, message, { cause: error });
    }
  }

  [Symbol.dispose](): void {
    this.#client[Symbol.dispose]();
  }
}

/** True for a call that the shim did not answer; false for one that it refused. */
export function isNoAnswer(error: unknown): boolean {
  return ["DEADLINE_EXCEEDED", "UNAVAILABLE"].includes(codeOf(error));
}
