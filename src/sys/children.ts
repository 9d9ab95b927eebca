// The children that the engine (Bun, Deno) waits for: whoever else reaped one would take its exit away,
// and its caller would wait for ever.
import type { ChildProcess } from "node:child_process";

const waitedFor = new Set<number>();

/** To be put around every spawn(). */
export function engineChild<Child extends ChildProcess>(child: Child): Child {
  const { pid } = child;
  if (pid === undefined) return child;
  waitedFor.add(pid);
  child.once("exit", () => waitedFor.delete(pid));
  return child;
}

export function isEngineChild(pid: number): boolean {
  return waitedFor.has(pid);
}
