// The engine keeps what it once needed until it needs more. A daemon is idle most of its life, so what
// a time of work has left is given back when that is over.

const lookMs = 1_000;
/** How long nothing may have happened until compiled code goes. */
export const idleMs = 60_000;

type Engine = { gc(force: boolean): void; shrink(): void };

/** Under Deno there is none. */
const engine = (globalThis as unknown as { Bun?: Engine }).Bun;

/** Frees what nothing refers to any more. A worker's loop, which never returns, can do no more. */
export function collectGarbage(): void {
  engine?.gc(true);
}

/** A count of what was begun, of any kind, and whether some of it goes on. */
export type Work = { count: number; goesOn: boolean };

/**
 * Gives memory back once after each time of work: what nothing refers to after a second, compiled code
 * after a minute. That is a third of the heap, and without it the next calls take some ms longer, until
 * what they need is compiled again. Never amid work: it holds the loop up for some ms.
 */
export function shrinkWhenIdle(work: () => Work): Disposable {
  let seen = work().count;
  let idle = 0;
  const timer = setInterval(() => {
    const { count, goesOn } = work();
    idle = count === seen && !goesOn ? idle + lookMs : 0;
    seen = count;
    if (idle === lookMs) collectGarbage();
    if (idle === idleMs) engine?.shrink();
  }, lookMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
