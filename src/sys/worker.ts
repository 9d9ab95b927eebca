// Starts worker threads.
import { constants } from "node:fs";
import { Worker } from "node:worker_threads";
import { build } from "../base/build.ts";
import { Descriptor } from "./descriptor.ts";

/** More than the engine opens for a thread: it ends the whole process when it cannot. */
const descriptorsNeeded = 16;

/**
 * path: of the worker's module below src, which dist/build.ts names as an entry.
 * @throws EMFILE or ENFILE where too few descriptors are left.
 */
export function startWorker(path: `${string}/${string}.ts`, workerData: unknown): Worker {
  requireDescriptors();
  const entry = build === undefined ? new URL(`../${path}`, import.meta.url) : `./src/${path}`;
  return new Worker(entry, { workerData, smol: true } as WorkerOptions);
}

function requireDescriptors(): void {
  using opened = new DisposableStack();
  for (let count = 0; count < descriptorsNeeded; count++) {
    opened.use(Descriptor.open("/dev/null", constants.O_RDONLY));
  }
}
