// Defines how a container ended: the part of an exit that the monitor records and reports and that a
// container's record is made from.
import * as v from "valibot";
import { Digits } from "./digits.ts";

const OomLimit = v.picklist(["container", "pod", "node"]);
/** Whose memory limit made the kernel kill a process. */
export type OomLimit = v.InferOutput<typeof OomLimit>;

/** Times in nanoseconds since the epoch. */
export const ExitSchema = v.object({
  /** 128 + n for signal n; 255 when it cannot be known. */
  exitCode: v.number(),
  known: v.boolean(),
  startedAtNs: Digits,
  finishedAtNs: Digits,
  /** The kernel killed a process of this container's cgroup for memory. */
  oomKilled: v.boolean(),
  /** Absent where it is not known, and in older records. */
  oomLimit: v.optional(OomLimit),
  /** Why the exit code is not the program's own, or what it does not tell; absent without, and in older records. */
  problem: v.optional(v.string()),
  /** Bytes of output that could not be written to the log (disk full). */
  lostLogBytes: v.number(),
});
export type Exit = v.InferOutput<typeof ExitSchema>;
