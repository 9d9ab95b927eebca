// Refuses a process whose arguments and variables the kernel would refuse at the start, after the container was made.
import { CriError } from "../base/errors.ts";
import type { ContainerConfig } from "../proto/types.ts";
import type { OciSpec } from "./oci_types.ts";

/** The kernel's bounds (execve(2), "Limits on size of arguments and environment"): 3/4 of 8 MiB, and ARG_MAX. */
const bytesMax = 6 << 20;
const bytesMin = 128 << 10;
/** A text's NUL, and the pointer to it. */
const overheadBytes = 1 + 8;

type Process = Pick<OciSpec["process"], "args" | "env" | "rlimits">;

type Rlimits = OciSpec["process"]["rlimits"];

/**
 * Refuses what execve(2) would refuse. ownStack: the soft limit of the stack that the container inherits unless its
 * own limits name one; Infinity: none. @throws CriError INVALID_ARGUMENT.
 */
export function requireStartable({ args, env, rlimits }: Process, ownStack: number): void {
  requireBytes(bytesOf(args) + bytesOf(env), rlimits, ownStack);
}

/** The same for a request, before anything is made of it. @throws CriError INVALID_ARGUMENT. */
export function requireStartableRequest(
  { command, args, envs }: ContainerConfig,
  rlimits: Rlimits,
  ownStack: number,
): void {
  let bytes = bytesOf(command) + bytesOf(args);
  for (const { key, value } of envs ?? [])
    bytes += Buffer.byteLength(key ?? "") + 1 + (value?.length ?? 0) + overheadBytes;
  requireBytes(bytes, rlimits, ownStack);
}

function bytesOf(texts: readonly string[] | null | undefined): number {
  let bytes = 0;
  for (const text of texts ?? []) bytes += Buffer.byteLength(text) + overheadBytes;
  return bytes;
}

function requireBytes(bytes: number, rlimits: Rlimits, ownStack: number): void {
  const given = rlimits?.find(({ type }) => type === "RLIMIT_STACK");
  const stack = given === undefined ? ownStack : Number(given.soft);
  const allowed = Math.max(Math.min(bytesMax, Math.floor(stack / 4)), bytesMin);
  if (bytes <= allowed) return;
  const what = `the container's command, arguments and environment take ${bytes} bytes`;
  const why = `the kernel starts no program with more than ${allowed} (a quarter of its stack limit)`;
  throw new CriError("INVALID_ARGUMENT", `${what}; ${why}: shorten them`);
}
