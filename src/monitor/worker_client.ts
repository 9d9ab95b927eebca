// The main thread's side of the log worker: requests by number, and a nudge out of epoll.
import { Worker } from "node:worker_threads";
import { build } from "../base/build.ts";
import { CriError } from "../base/errors.ts";
import { eventfd, signalEventfd } from "../sys/descriptor.ts";
import type { WorkerReply, WorkerRequest } from "./log_worker.ts";

type Body = WorkerRequest extends infer R ? (R extends R ? Omit<R, "seq"> : never) : never;

export class LogWorker {
  readonly #wakeFd = eventfd();
  readonly #worker: Worker;
  readonly #waiting = new Map<number, PromiseWithResolvers<WorkerReply>>();
  #seq = 0;

  /** onFailure: the worker ended, and with it every log; the process must be replaced. */
  constructor(onFailure: (error: unknown) => void) {
    // Inside the executable a worker goes by its path from the build's root (dist/build.ts).
    const entry =
      build === undefined
        ? new URL("./log_worker.ts", import.meta.url)
        : "./src/monitor/log_worker.ts";
    this.#worker = new Worker(entry, { workerData: { wakeFd: this.#wakeFd } });
    this.#worker.on("error", onFailure);
    this.#worker.on("exit", (code) => onFailure(new Error(`log worker ended with ${code}`)));
    this.#worker.on("message", (reply: WorkerReply) => {
      const waiting = this.#waiting.get(reply.seq);
      this.#waiting.delete(reply.seq);
      if (reply.error === undefined) waiting?.resolve(reply);
      else waiting?.reject(new CriError("INTERNAL", reply.error));
    });
  }

  request(body: Body): Promise<WorkerReply> {
    const seq = ++this.#seq;
    const waiting = Promise.withResolvers<WorkerReply>();
    this.#waiting.set(seq, waiting);
    this.#worker.postMessage({ ...body, seq });
    signalEventfd(this.#wakeFd);
    return waiting.promise;
  }
}
