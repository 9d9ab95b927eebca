// Cancellation: errors for work that a deadline or its caller ended, and waits that can be given up.
import { CriError } from "./errors.ts";

/** @throws CriError DEADLINE_EXCEEDED or CANCELLED when the signal has aborted. */
export function throwIfAborted(what: string, signal: AbortSignal): void {
  if (signal.aborted) throw abortError(what, signal);
}

/** Makes the error of work that its deadline or its caller ended. */
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
 * A result that may be dropped. A disposable may not: nobody would close one that arrives after its waiter has
 * given up. Work with such a result takes the signal itself, and closes the result on abort.
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
 * Waits for work that cannot be cancelled until the signal aborts; the work goes on in the background.
 * @throws CriError DEADLINE_EXCEEDED or CANCELLED.
 */
export async function untilAborted<T extends Droppable>(
  promise: Promise<T>,
  what: string,
  signal: AbortSignal,
): Promise<T> {
  promise.catch(() => {}); // its failure after the abort is ignored
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

/** Returns a signal that aborts `ms` after the given one, for work that an abort at once would leave half done. */
export function afterGrace(signal: AbortSignal, ms: number): AbortSignal {
  const controller = new AbortController();
  const onAbort = () => setTimeout(() => controller.abort(signal.reason), ms).unref();
  if (signal.aborted) onAbort();
  else signal.addEventListener("abort", onAbort, { once: true });
  return controller.signal;
}

/** Waits like untilAborted, with a deadline. @throws CriError DEADLINE_EXCEEDED. */
export function inTime<T extends Droppable>(
  promise: Promise<T>,
  what: string,
  ms: number,
): Promise<T> {
  return untilAborted(promise, what, AbortSignal.timeout(ms));
}
