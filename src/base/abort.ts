// Work that its deadline or its caller may end, and how it says so.
import { CriError } from "./errors.ts";

/** @throws CriError DEADLINE_EXCEEDED or CANCELLED when the signal has aborted. */
export function throwIfAborted(what: string, signal: AbortSignal): void {
  if (signal.aborted) throw abortError(what, signal);
}

/** The error for work that its deadline or its caller ended. */
export function abortError(what: string, signal: AbortSignal, elapsedMs?: number): CriError {
  const after = elapsedMs === undefined ? "" : ` after ${Math.round(elapsedMs)} ms`;
  const reason: unknown = signal.reason;
  if (reason instanceof CriError) {
    return new CriError(reason.code, `${what}: ended${after}: ${reason.message}`, {
      cause: reason,
    });
  }
  if (reason instanceof DOMException && reason.name === "TimeoutError") {
    return new CriError("DEADLINE_EXCEEDED", `${what}: deadline exceeded${after}`, {
      cause: reason,
    });
  }
  return new CriError("CANCELLED", `${what}: cancelled${after}`, { cause: reason });
}

/**
 * A result that may be dropped. What must be closed may not: it would stay open where it comes after its
 * waiter has gone. Such work takes the signal, ends by it, and closes what it has made.
 */
export type Droppable =
  | string
  | number
  | bigint
  | boolean
  | undefined
  | void
  | (object & { [Symbol.dispose]?: never; [Symbol.asyncDispose]?: never });

/**
 * Waits for something that cannot be ended, until the signal aborts; it goes on by itself then.
 * @throws CriError DEADLINE_EXCEEDED or CANCELLED.
 */
export async function untilAborted<T extends Droppable>(
  promise: Promise<T>,
  what: string,
  signal: AbortSignal,
): Promise<T> {
  promise.catch(() => {}); // its failure after the abort is nobody's
  throwIfAborted(what, signal);
  const begin = performance.now();
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(abortError(what, signal, performance.now() - begin));
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

/**
 * Aborts `ms` after the signal does, with its reason: for work that leaves something half done when it is
 * ended at once.
 */
export function afterGrace(signal: AbortSignal, ms: number): AbortSignal {
  const controller = new AbortController();
  const onAbort = () => setTimeout(() => controller.abort(signal.reason), ms).unref();
  if (signal.aborted) onAbort();
  else signal.addEventListener("abort", onAbort, { once: true });
  return controller.signal;
}

/** untilAborted with a deadline. @throws CriError DEADLINE_EXCEEDED. */
export function inTime<T extends Droppable>(
  promise: Promise<T>,
  what: string,
  ms: number,
): Promise<T> {
  return untilAborted(promise, what, AbortSignal.timeout(ms));
}
