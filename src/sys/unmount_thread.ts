// Unmounts file systems in threads of their own. The kernel writes back a file system's data in the unmounting thread,
// also with MNT_DETACH: overlayfs before Linux 5.10, or on a disk that stalls, takes seconds, in which the event loop
// would answer nobody.
//
// Decision: threads, as they cost nothing while no pod ends; a program for each unmount would cost more than the unmount.
// Several, so that one slow file system does not hold up the ends of all other containers; one of them is for what is
// in memory only, such as /dev/shm and namespaces, and never waits for a disk.
import type { Worker } from "node:worker_threads";
import { Semaphore } from "../base/semaphore.ts";
import { unmount } from "./mount.ts";
import { startWorker } from "./worker.ts";

/** A request's reply has no code for success. */
export type UnmountRequest = { target: string; flags: number };
export type UnmountReply = { code?: string; message?: string };

/** How many threads may unmount what is on a disk, and what is in memory. */
const slots = {
  disk: new Semaphore(3, "a thread that unmounts file systems"),
  memory: new Semaphore(1, "a thread that unmounts what is in memory"),
};
/** A thread that has had nothing to do for this long ends. */
const idleMs = 5_000;

const idle: { worker: Worker; timer: NodeJS.Timeout }[] = [];

/** umount2(2), never through a symlink. @throws with errno's name as `code`. */
export async function unmountInThread(
  target: string,
  { flags = 0, kind }: { flags?: number; kind: keyof typeof slots },
): Promise<void> {
  using _ = await slots[kind].acquire();
  let worker: Worker;
  try {
    worker = take();
  } catch {
    return unmount(target, flags); // no descriptor is left for a thread, and an unmount may free some
  }
  const { code, message } = await ask(worker, { target, flags });
  keep(worker);
  if (code === undefined) return;
  const error: NodeJS.ErrnoException = new Error(message);
  error.code = code;
  throw error;
}

function take(): Worker {
  const last = idle.pop();
  if (last === undefined) return startWorker("sys/unmount_worker.ts", undefined);
  clearTimeout(last.timer);
  last.worker.ref();
  return last.worker;
}

function ask(worker: Worker, request: UnmountRequest): Promise<UnmountReply> {
  return new Promise((resolve, reject) => {
    const done = (settle: () => void) => {
      worker.removeAllListeners();
      settle();
    };
    worker.once("message", (reply: UnmountReply) => done(() => resolve(reply)));
    worker.once("error", (error) => done(() => reject(error)));
    worker.postMessage(request);
  });
}

function keep(worker: Worker): void {
  worker.unref();
  const end = () => {
    idle.splice(
      idle.findIndex((one) => one.worker === worker),
      1,
    );
    worker.terminate().catch(() => {});
  };
  const timer = setTimeout(end, idleMs);
  timer.unref();
  idle.push({ worker, timer });
}
