// Reads OOM kills from the kernel log (/dev/kmsg).
import { constants, readSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";

const recordBytesMax = 8 << 10;
/** Far more than the ring buffer can hold. */
const recordsMax = 200_000;

/** A process killed by the OOM killer. */
export type Victim = {
  pid: number;
  /** Microseconds since boot. */
  atUs: number;
  /** A cgroup limit caused the kill, not the node's memory. */
  byCgroup: boolean;
};

const killLine =
  /^[0-7],\d+,(\d+),[^;]*;(Memory cgroup out|Out) of memory[^:]*: Killed process (\d+) /;

/**
 * Parses the kernel's line about a kill; unlike the report that precedes it, this line is not rate-limited.
 * Documentation/ABI/testing/dev-kmsg: "6,1234,5678901,-;text"; users' records have a facility, so 8 or more.
 */
export function parseVictim(record: string): Victim | undefined {
  const [, atUs, scope, pid] = killLine.exec(record) ?? [];
  if (pid === undefined) return undefined;
  return { pid: Number(pid), atUs: Number(atUs), byCgroup: scope === "Memory cgroup out" };
}

/** Returns all kills in the log, oldest first; undefined when it cannot be read. */
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

/** Reads one record; returns 0 at the end, -1 for a record that was overwritten meanwhile. */
function readRecord({ fd }: Descriptor, buffer: Buffer): number {
  try {
    return readSync(fd, buffer, 0, buffer.length, null);
  } catch (error) {
    return errnoOf(error) === "EPIPE" ? -1 : 0; // EAGAIN: no more records; EINVAL, EIO: unreadable
  }
}
