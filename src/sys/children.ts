// Registers the children that the engine (Bun, Deno) waits for: if another caller reaped one, the engine
// would wait for its exit for ever.
import { spawn as nodeSpawn, type ChildProcess, type SpawnOptions } from "node:child_process";
import { CriError } from "../base/errors.ts";

/** Says why a program cannot be run when no descriptor is free (EMFILE, ENFILE), and which limits to raise. */
export const tooManyFiles =
  "too many open files (LimitNOFILE of the daemon, fs.file-max of the node)";

const waitedFor = new Set<number>();

type Recorder = (program: string, start: () => ChildProcess) => ChildProcess;
let recorder: Recorder | undefined;

/** Has all later children started by a function that records them (left_programs.ts). */
export function recordChildren(record: Recorder): void {
  recorder = record;
}

/**
 * Replaces node:child_process's spawn() in every room.
 * @throws CriError RESOURCE_EXHAUSTED where node's would return a child without streams.
 */
export const spawn = ((program: string, args: string[], options: SpawnOptions) => {
  const start = () => spawnLasting(program, args, options);
  return recorder === undefined ? start() : recorder(program, start);
}) as typeof nodeSpawn;

/** spawn() for a program that outlives this process. */
export const spawnLasting = ((program: string, args: string[], options: SpawnOptions) => {
  const child = nodeSpawn(program, args, options);
  const { pid } = child;
  if ((child.stdio as unknown) === undefined) {
    child.on("error", () => {}); // EMFILE, ENFILE or ENOMEM: thrown below
    throw new CriError(
      "RESOURCE_EXHAUSTED",
      `cannot run ${options.argv0 ?? program}: ${tooManyFiles} or too little memory`,
    );
  }
  if (pid !== undefined) {
    waitedFor.add(pid);
    child.once("exit", () => waitedFor.delete(pid));
  }
  return child;
}) as typeof nodeSpawn;

export function isEngineChild(pid: number): boolean {
  return waitedFor.has(pid);
}
