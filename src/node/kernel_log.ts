// The kernel's log, for what it tells nowhere else.
import { constants, readSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";

const recordBytesMax = 8 << 10;
/** Far more than a ring has. */
const recordsMax = 200_000;

/** A process that the kernel killed for memory. */
export type Victim = {
  pid: number;
  /** Microseconds since the boot. */
  atUs: number;
  /** The limit was a cgroup's, not the node's memory. */
  byCgroup: boolean;
};

/**
 * The line of each kill; unlike the report above it, it is not held back when there are many.
 * Documentation/ABI/testing/dev-kmsg: "6,1234,5678901,-;text"; what users write has a facility, from 8.
 */
export function parseVictim(record: string): Victim | undefined {
  const match =
    /^[0-7],\d+,(\d+),[^;]*;(Memory cgroup out|Out) of memory[^:]*: Killed process (\d+) /.exec(
      record,
    );
  if (match === null) return undefined;
  const [, atUs, whose, pid] = match;
  return { pid: Number(pid), atUs: Number(atUs), byCgroup: whose === "Memory cgroup out" };
}

/** All that the log still has, the oldest first; undefined where it cannot be read. */
export function readVictims(path = "/dev/kmsg"): Victim[] | undefined {
  const victims: Victim[] = [];
  using log = openIfPossible(path);
  if (log === undefined) return undefined;
  const buffer = Buffer.allocUnsafe(recordBytesMax);
  for (let count = 0; count < recordsMax; count++) {
    const length = readRecord(log, buffer);
    if (length === 0) break;
    const victim = parseVictim(buffer.toString("latin1", 0, Math.max(length, 0)));
    if (victim !== undefined) victims.push(victim);
  }
  return victims;
}

function openIfPossible(path: string): Descriptor | undefined {
  try {
    return Descriptor.open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch {
    return undefined;
  }
}

/** One record a read; 0 at the end, -1 for one that was overwritten meanwhile. */
function readRecord({ fd }: Descriptor, buffer: Buffer): number {
  try {
    return readSync(fd, buffer, 0, buffer.length, null);
  } catch (error) {
    if (errnoOf(error) === "EPIPE") return -1;
    return 0; // EAGAIN: no more; EINVAL, EIO: no log to be had
  }
}
