// CriError: the error class of everything that reaches a caller; cri/grpc_calls.ts maps it to a gRPC status.
import { shorten } from "./text.ts";

/** gRPC status codes by name (grpc/grpc, doc/statuscodes.md). */
export const grpcCodes = {
  CANCELLED: 1,
  UNKNOWN: 2,
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  NOT_FOUND: 5,
  ALREADY_EXISTS: 6,
  PERMISSION_DENIED: 7,
  RESOURCE_EXHAUSTED: 8,
  FAILED_PRECONDITION: 9,
  ABORTED: 10,
  OUT_OF_RANGE: 11,
  UNIMPLEMENTED: 12,
  INTERNAL: 13,
  UNAVAILABLE: 14,
  DATA_LOSS: 15,
  UNAUTHENTICATED: 16,
} as const;

export type ErrorCode = keyof typeof grpcCodes;

/** Carries a gRPC code; the message says what went wrong with which object, and if known what to do next. */
export class CriError extends Error {
  override readonly name = "CriError";
  readonly code: ErrorCode;

  /** code: replaced by RESOURCE_EXHAUSTED if the cause shows that the node is out of descriptors or memory. */
  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = isNodeExhausted(options?.cause) ? "RESOURCE_EXHAUSTED" : code;
  }
}

/** True for a system call that failed because the node is out of descriptors or memory, whatever its object. */
export function isNodeExhausted(error: unknown): boolean {
  return ["EMFILE", "ENFILE", "ENOMEM"].includes(errnoOf(error) ?? "");
}

/** Bounds messages, which may contain the output of a plugin or a runtime. */
const messageBytesMax = 16 << 10;

/** Returns the message of any thrown value, well-formed and bounded; a failed roll-back stands after its cause. */
export function messageOf(error: unknown): string {
  if (error instanceof SuppressedError) {
    return `${messageOf(error.suppressed)} (and its roll-back failed: ${messageOf(error.error)})`;
  }
  try {
    return shorten(String(error instanceof Error ? error.message : error), messageBytesMax);
  } catch {
    return "an error without a message"; // an object without a prototype, or one that throws itself
  }
}

/** Errors of a full disk; cgroups and inotify fail with ENOSPC, too. */
const diskFull = ["ENOSPC", "EDQUOT"];

/** Returns the code of any thrown value: of a CriError, deadline, cancellation, or errno; else INTERNAL. */
export function codeOf(error: unknown): ErrorCode {
  if (error instanceof SuppressedError) return codeOf(error.suppressed);
  if (error instanceof CriError) return error.code;
  if (error instanceof DOMException && error.name === "TimeoutError") return "DEADLINE_EXCEEDED";
  if (error instanceof DOMException && error.name === "AbortError") return "CANCELLED";
  const isExhausted = isNodeExhausted(error) || diskFull.includes(errnoOf(error) ?? "");
  return isExhausted ? "RESOURCE_EXHAUSTED" : "INTERNAL";
}

/** Returns errno's name ("ENOENT") of a failed system call, or undefined. */
export function errnoOf(error: unknown): string | undefined {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  return typeof code === "string" && /^E[A-Z0-9]+$/.test(code) ? code : undefined;
}

/** True if a write failed, or one of the causes of an error did, because the file system is read-only. */
export function isReadOnlyDisk(error: unknown): boolean {
  for (let one = error; one instanceof Error; one = one.cause) {
    if (errnoOf(one) === "EROFS" || one.message.includes("EROFS")) return true;
  }
  return error instanceof SuppressedError && isReadOnlyDisk(error.suppressed);
}
