// Returns the engine's unused memory to the kernel after each busy period; the engine itself would keep it.

const lookMs = 1_000;
/** Compiled code is discarded after this long without work. */
export const idleMs = 60_000;

type Engine = { gc(force: boolean): void; shrink(): void };

/** Under Deno there is none. */
const engine = (globalThis as unknown as { Bun?: Engine }).Bun;

/** Collects garbage, which is all that a worker can do whose loop never returns to the event loop. */
export function collectGarbage(): void {
  engine?.gc(true);
}

/** count: pieces of work begun so far; goesOn: some has not ended. */
export type Work = { count: number; goesOn: boolean };

/**
 * Frees memory once after each busy period: garbage after a second, compiled code after a minute. That is a
 * third of the heap; the next calls then take some ms longer, until their code is compiled again. Never
 * during work: it blocks the event loop for some ms.
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
