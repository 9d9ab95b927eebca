// Finds processes by their command lines. A short-lived helper reads them: a command line lies in the memory of its
// process, and reading it hangs while that process waits, in a page fault, for a server that does not answer (FUSE, NFS,
// userfaultfd). So may a look at its root folder. The helper is then killed, and another one goes on behind that process.
import type { ChildProcess } from "node:child_process";
import { readdirSync, readFileSync, readlinkSync, statSync, writeSync } from "node:fs";
import process from "node:process";
import { runningProgram } from "../base/build.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { spawn } from "./children.ts";
import { startTimeIn } from "./process.ts";

/** The helper's argument (main.ts). */
export const commandLinesHelper = "command-lines";

/** Limit for the helper's start, on a busy node, and for each process. */
const startMs = 10_000;
const processMs = 500;
/** Processes that hang, after which the rest is not looked at. */
const hangingMax = 8;

/** Processes whose command line contains `text` (a NUL before and after each argument) and that see this same folder. */
export type Search = {
  folder: string;
  text: string;
  /** For tests. */
  proc?: string;
};
/** started: its start time (process.ts), which identifies the process together with the pid. */
export type FoundProcess = { pid: number; started: string };

/**
 * Finds processes. onHanging: called with the pid of each one that cannot be read.
 * @throws when the helper cannot be started.
 */
export async function processesWith(
  search: Search,
  onHanging: (pid: number) => void,
): Promise<FoundProcess[]> {
  const found: FoundProcess[] = [];
  let after = 0;
  for (let hanging = 0; hanging < hangingMax; hanging++) {
    const { matches, at } = await askHelper({ ...search, after });
    found.push(...matches);
    if (at === undefined) break;
    onHanging(at);
    after = at;
  }
  return found;
}

/** after: the pid up to which the processes were looked at. */
type Request = Search & { after: number };
/** at: the process at which the helper hangs; undefined: it has looked at all. */
type Answer = { matches: FoundProcess[]; at: number | undefined };

async function askHelper(request: Request): Promise<Answer> {
  const { argv, argv0 } = runningProgram();
  const args = [...argv.slice(1), commandLinesHelper, jsonText(request)];
  const stdio = ["ignore" as const, "pipe" as const, "ignore" as const];
  const child = spawn(argv[0]!, args, { stdio, argv0, cwd: "/" });
  return readAnswer(await outputOf(child));
}

/** Returns what the helper has written when it ends, or hangs and is killed. */
function outputOf(child: ChildProcess): Promise<string> {
  const { promise: ended, resolve } = Promise.withResolvers<string>();
  let text = "";
  const end = () => {
    clearTimeout(timer);
    child.stdout!.destroy();
    resolve(text);
  };
  const kill = () => {
    child.kill("SIGKILL");
    child.unref(); // it may be in the kernel, where even that does not end it
    end();
  };
  let timer = setTimeout(kill, startMs);
  child.stdout!.setEncoding("latin1").on("data", (more: string) => {
    text += more;
    clearTimeout(timer);
    timer = setTimeout(kill, processMs);
  });
  child.stdout!.on("close", end).on("error", end);
  child.on("error", end);
  return ended;
}

/** Reads lines: the pid before each look, the pid and the start time after a match, and "." at the end. */
function readAnswer(output: string): Answer {
  const lines = output.split("\n").slice(0, -1);
  const matches = lines.flatMap((line) => {
    const [, pid, started] = /^(\d+) (\d+)$/.exec(line) ?? [];
    return started === undefined ? [] : [{ pid: Number(pid), started }];
  });
  if (lines.at(-1) === ".") return { matches, at: undefined };
  const last = lines.findLast((line) => /^\d+$/.test(line));
  if (last === undefined) throw new Error("the helper that reads command lines has failed");
  return { matches, at: Number(last) };
}

/** Runs the helper. */
export function commandLinesMain([text = ""]: string[]): number {
  const request = jsonValue(text) as Request;
  const { proc = "/proc", after } = request;
  const pids = readdirSync(proc).filter((name) => /^\d+$/.test(name));
  for (const pid of pids.map(Number).toSorted((a, b) => a - b)) {
    if (pid <= after || !isOfThisNamespace(proc, pid)) continue;
    writeSync(1, `${pid}\n`);
    const started = startTimeIn(`${proc}/${pid}`);
    if (started !== undefined && matches(request, `${proc}/${pid}`))
      writeSync(1, `${pid} ${started}\n`);
  }
  writeSync(1, ".\n");
  return 0;
}

function matches({ folder, text }: Search, at: string): boolean {
  try {
    if (!`\0${readFileSync(`${at}/cmdline`, "utf8")}`.includes(text)) return false;
    const [here, there] = [statSync(folder), statSync(`${at}/root${folder}`)];
    return there.dev === here.dev && there.ino === here.ino;
  } catch {
    return false; // it has ended
  }
}

/** False for a process of a container with a pid namespace of its own, which is none that isulad-ts has started. */
function isOfThisNamespace(proc: string, pid: number): boolean {
  try {
    return readlinkSync(`${proc}/${pid}/ns/pid`) === readlinkSync(`/proc/${process.pid}/ns/pid`);
  } catch {
    return true; // unknown
  }
}
