// The engine keeps what it once needed until it needs more. A daemon is idle most of its life, so what
// a time of work has left is given back when that is over.

/** How long nothing may have happened. */
export const idleMs = 1_000;

/** Gives free memory back; does nothing under Deno, which offers no such call. */
export function collectGarbage(): void {
  const engine = (globalThis as unknown as { Bun?: { gc(force: boolean): void } }).Bun;
  engine?.gc(true);
}

/** Collects once after each time of work; `worked` counts what was done, of any kind. */
export function collectWhenIdle(worked: () => number): Disposable {
  let seen = worked();
  let collected = seen;
  const timer = setInterval(() => {
    const now = worked();
    if (now === seen && now !== collected) {
      collectGarbage();
      collected = now;
    }
    seen = now;
  }, idleMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
