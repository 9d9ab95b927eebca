// Refuses a process whose arguments and variables the kernel would refuse at the start, after the container was made.
import { CriError } from "../base/errors.ts";
import type { OciSpec } from "./oci_types.ts";

/** The kernel's bounds (execve(2), "Limits on size of arguments and environment"): 3/4 of 8 MiB, and ARG_MAX. */
const bytesMax = 6 << 20;
const bytesMin = 128 << 10;
const pointerBytes = 8;

type Process = Pick<OciSpec["process"], "args" | "env" | "rlimits">;

/**
 * Refuses what execve(2) would refuse. ownStack: the soft limit of the stack that the container inherits unless its
 * own limits name one; Infinity: none. @throws CriError INVALID_ARGUMENT.
 */
export function requireStartable({ args, env, rlimits }: Process, ownStack: number): void {
  const given = rlimits?.find(({ type }) => type === "RLIMIT_STACK");
  const stack = given === undefined ? ownStack : Number(given.soft);
  const allowed = Math.max(Math.min(bytesMax, Math.floor(stack / 4)), bytesMin);
  let bytes = 0;
  for (const text of [...args, ...(env ?? [])]) bytes += Buffer.byteLength(text) + 1 + pointerBytes;
  if (bytes <= allowed) return;
  const what = `the container's command, arguments and environment take ${bytes} bytes`;
  const why = `the kernel starts no program with more than ${allowed} (a quarter of its stack limit)`;
  throw new CriError("INVALID_ARGUMENT", `${what}; ${why}: shorten them`);
}
