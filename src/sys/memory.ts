// The engine keeps what it once needed until it needs more. A daemon is idle most of its life, so what
// a time of work has left is given back when that is over.

/** How long nothing may have happened; after twice that it has been seen. */
export const idleMs = 10_000;

type Engine = { gc(force: boolean): void; shrink(): void };

/** Under Deno there is none. */
const engine = (globalThis as unknown as { Bun?: Engine }).Bun;

/** Frees what nothing refers to any more. A worker's loop, which never returns, can do no more. */
export function collectGarbage(): void {
  engine?.gc(true);
}

/**
 * Gives memory back once after each time of work; `worked` counts what was done, of any kind. Compiled
 * code goes too: it is a third of the heap, and costs the next call of each kind some 10 ms.
 */
export function shrinkWhenIdle(worked: () => number): Disposable {
  let seen = worked();
  let shrunk = seen;
  const timer = setInterval(() => {
    const now = worked();
    if (now === seen && now !== shrunk) {
      engine?.shrink();
      shrunk = now;
    }
    seen = now;
  }, idleMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
