// Makes the errors by which this room refuses a config.
import { CriError } from "../base/errors.ts";

/** Refuses a value that is wrong on every node. */
export function invalid(message: string, cause?: unknown): CriError {
  return new CriError("INVALID_ARGUMENT", message, { cause });
}

/** Refuses a value that this host, runtime or pod does not support. */
export function unsupported(message: string): CriError {
  return new CriError("FAILED_PRECONDITION", message);
}

/** Refuses a feature that the runtime lacks (RuntimeSupport). @returns UNAVAILABLE if its features are not known. */
export function unsupportedBy({ unknown }: { unknown?: string }, message: string): CriError {
  if (unknown === undefined) return unsupported(message);
  return new CriError(
    "UNAVAILABLE",
    `${message}; the runtime's are not known, try again: ${unknown}`,
  );
}
