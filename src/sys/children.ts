// The children that the engine (Bun, Deno) waits for: whoever else reaped one would take its exit away,
// and its caller would wait for ever.
import { spawn as nodeSpawn } from "node:child_process";

const waitedFor = new Set<number>();

/** node:child_process's spawn, which every room uses instead of that one. */
export const spawn = ((program: string, args: string[], options: object) => {
  const child = nodeSpawn(program, args, options);
  const { pid } = child;
  if (pid !== undefined) {
    waitedFor.add(pid);
    child.once("exit", () => waitedFor.delete(pid));
  }
  return child;
}) as typeof nodeSpawn;

export function isEngineChild(pid: number): boolean {
  return waitedFor.has(pid);
}
