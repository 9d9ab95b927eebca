// Starts a created container of runc without one more process of runc.
//
// Decision: runc's init waits until somebody reads from a FIFO in the container's state folder. `runc start` only does
// that, and removes the FIFO (libcontainer, Container.Exec: the same from runc 1.0 to 1.5), for 7 ms of CPU time. Hooks
// of the kind poststart are no part of it: runc runs them in `create`. The `start` of other runtimes, and of programs
// that wrap runc, may do more, and is called.
import { constants, realpathSync, rmSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError } from "../base/errors.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import { Descriptor, readNow } from "../sys/descriptor.ts";
import { readBounded } from "../sys/file.ts";
import { hasEnded } from "../sys/process.ts";

/** Returns the FIFO of a container that runc has created; undefined for other runtimes. */
export function execFifo({ path, root }: RuntimeCommand, id: string): string | undefined {
  const fifo = join(root, id, "exec.fifo");
  const isFifo = statSync(fifo, { throwIfNoEntry: false })?.isFIFO() === true;
  return isFifo && isRunc(path) ? fifo : undefined;
}

/** False for a script of that name. */
function isRunc(path: string): boolean {
  try {
    if (basename(realpathSync(path)) !== "runc") return false;
    return Buffer.from(readBounded(path, 4)).toString("latin1") === "\x7fELF";
  } catch {
    return false; // a call of it tells the error
  }
}

/**
 * Lets the init with this pid go on to the container's program.
 * @throws CriError UNKNOWN when the init has ended before, DEADLINE_EXCEEDED.
 */
export async function release(fifo: string, pid: number, timeoutMs: number): Promise<void> {
  using file = Descriptor.open(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const byte = new Uint8Array(1);
  const end = performance.now() + timeoutMs;
  for (;;) {
    const isGone = hasEnded(pid);
    if (readNow(file, byte) > 0) break;
    const init = `the container's init, process ${pid},`;
    if (isGone) throw new CriError("UNKNOWN", `${init} ended before the start`);
    if (performance.now() > end) {
      throw new CriError("DEADLINE_EXCEEDED", `${init} did not go on in ${timeoutMs} ms`);
    }
    await sleep(1);
  }
  rmSync(fifo, { force: true });
}
