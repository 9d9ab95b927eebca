// Starts worker threads.
import { Worker } from "node:worker_threads";
import { build } from "../base/build.ts";

/** path: of the worker's module below src, which dist/build.ts names as an entry. */
export function startWorker(path: `${string}/${string}.ts`, workerData: unknown): Worker {
  const entry = build === undefined ? new URL(`../${path}`, import.meta.url) : `./src/${path}`;
  return new Worker(entry, { workerData, smol: true } as WorkerOptions);
}
