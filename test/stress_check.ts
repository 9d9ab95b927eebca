// Compares the results of a stressed daemon with the expected ones: outputs, exit codes, logs, and the
// daemon's own log. It is pure, so that stress.test.ts can test it with planted faults.

export type FaultKind =
  | "SIGPIPE"
  | "wrong code"
  | "bytes differ"
  | "log differs"
  /** A newline at a log's end that the container did not write. */
  | "newline added"
  | "event"
  /** Lists disagree with the running processes. */
  | "state"
  | "call failed"
  | "monitor"
  | "own log"
  | "leak";

/** Faults by kind: count and descriptions of the first ones. Plain data, for the record of a run. */
export type Faults = Partial<Record<FaultKind, { count: number; first: string[] }>>;

const examplesMax = 8;
const wordsMax = 600;

export function addFault(faults: Faults, kind: FaultKind, words: string): void {
  const entry = (faults[kind] ??= { count: 0, first: [] });
  entry.count++;
  if (entry.first.length < examplesMax) entry.first.push(words.slice(0, wordsMax));
}

export function countFaults(faults: Faults): number {
  return Object.values(faults).reduce((sum, { count }) => sum + count, 0);
}

export type Output = { exitCode: number; stdout: string; stderr: string };

/** 128 + SIGPIPE: the exit code of a command whose output was closed. */
const sigpipeCode = 141;

/** Compares an exec's exit code and both streams; true when all are as expected. */
export function compareOutput(
  got: Output,
  wanted: Output,
  { who, faults }: { who: string; faults: Faults },
): boolean {
  const before = countFaults(faults);
  if (got.exitCode !== wanted.exitCode) {
    const kind = got.exitCode === sigpipeCode ? "SIGPIPE" : "wrong code";
    addFault(faults, kind, `${who}: exit code ${got.exitCode} for ${wanted.exitCode}`);
  }
  for (const stream of ["stdout", "stderr"] as const) {
    const words = difference(got[stream], wanted[stream]);
    if (words !== undefined) addFault(faults, "bytes differ", `${who}: ${stream}: ${words}`);
  }
  return countFaults(faults) === before;
}

/** Describes the first difference; undefined: the texts are equal. */
export function difference(got: string, wanted: string): string | undefined {
  if (got === wanted) return undefined;
  const length = Math.min(got.length, wanted.length);
  let at = 0;
  while (at < length && got[at] === wanted[at]) at++;
  const piece = (text: string) => JSON.stringify(text.slice(at, at + 40));
  return `${got.length} characters for ${wanted.length}; at ${at} ${piece(got)} for ${piece(wanted)}`;
}

export type Streams = { stdout: string; stderr: string };

const logLine =
  /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([PF]) (.*)$/s;

/** Returns each stream of a CRI log with partial lines joined. @throws Error for an invalid line. */
export function streamsOf(log: string): Streams {
  const pieces: Record<keyof Streams, string[]> = { stdout: [], stderr: [] };
  const lines = log.split("\n");
  if (lines.pop() !== "") throw new Error("the log does not end with a newline");
  for (const line of lines) {
    const [, stream, tag, text] = logLine.exec(line) ?? [];
    if (stream === undefined) throw new Error(`not a log line: ${JSON.stringify(line)}`);
    pieces[stream as keyof Streams].push(tag === "F" ? `${text!}\n` : text!);
  }
  return { stdout: pieces.stdout.join(""), stderr: pieces.stderr.join("") };
}

/**
 * repeats: data that a killed monitor wrote before it consumed the FIFO is written twice. mayEnd: daemon
 * and monitor were killed at once; what a container wrote last that ended before they were back nobody held.
 */
export type LogRules = { repeats: boolean; mayEnd?: boolean };

/** Compares a container's log with what it wrote; returns how many lines came twice. */
export function compareLog(
  log: string,
  wanted: Streams,
  { who, faults, repeats, mayEnd = false }: { who: string; faults: Faults } & LogRules,
): number {
  let got: Streams;
  try {
    got = streamsOf(log);
  } catch (error) {
    addFault(faults, "log differs", `${who}: ${String(error)}`);
    return 0;
  }
  let repeated = 0;
  for (const stream of ["stdout", "stderr"] as const) {
    const text = withoutAddedNewline(got[stream], wanted[stream]);
    if (text !== got[stream]) addFault(faults, "newline added", `${who}: log of ${stream}`);
    if (text === wanted[stream]) continue;
    const count = repeats ? countRepeats(text, wanted[stream], { mayEnd }) : undefined;
    if (count !== undefined) repeated += count;
    else {
      const words = difference(text, wanted[stream])!;
      addFault(faults, "log differs", `${who}: log of ${stream}: ${words}`);
    }
  }
  return repeated;
}

function withoutAddedNewline(got: string, wanted: string): string {
  const last = wanted.slice(wanted.lastIndexOf("\n") + 1);
  const isAdded = last !== "" && `\n${got}`.endsWith(`\n${last}\n`);
  return isAdded ? got.slice(0, -1) : got;
}

/**
 * How many lines came again, where every line of `wanted` came at least once and in order; else undefined.
 * The lines of `wanted` must differ from each other.
 */
export function countRepeats(
  got: string,
  wanted: string,
  { mayEnd = false }: { mayEnd?: boolean } = {},
): number | undefined {
  const lines = wanted.split("\n");
  const places = new Map(lines.map((line, index) => [line, index]));
  if (places.size !== lines.length) throw new Error("lines that are equal cannot be told apart");
  let next = 0;
  let repeated = 0;
  // Of a text that may end early only whole lines count.
  const gotLines = (mayEnd ? got.slice(0, got.lastIndexOf("\n")) : got).split("\n");
  for (const line of mayEnd && !got.includes("\n") ? [] : gotLines) {
    const place = places.get(line);
    if (place === undefined || place > next) return undefined;
    if (place < next) repeated += next - place;
    next = place + 1;
  }
  return mayEnd || next === lines.length ? repeated : undefined;
}

export type Ended = { exitCode: number; reason: string; message: string };

/** unknown: the monitor was killed, so that 255, Unknown, with a message is a true answer. */
export function compareEnd(
  got: Ended,
  exitCode: number,
  { who, faults, unknown }: { who: string; faults: Faults; unknown: boolean },
): void {
  const reason = exitCode === 0 ? "Completed" : "Error";
  if (got.exitCode === exitCode && got.reason === reason) return;
  if (unknown && got.exitCode === 255 && got.reason === "Unknown" && got.message !== "") return;
  const words = `${who}: ${got.exitCode} ${got.reason} for ${exitCode} ${reason}: ${got.message}`;
  addFault(faults, got.exitCode === sigpipeCode ? "SIGPIPE" : "wrong code", words);
}

const framed = /^\S+ (ERROR|WARN |INFO |DEBUG) /;
/** A descriptor that is somebody else's by now. */
const badDescriptor = /\b(EBADF|EINVAL|EPIPE)\b/;

/** Faults in the daemon's or the monitor's own log; returns the other warnings, by their shape. */
export function readOwnLog(
  log: string,
  { who, faults }: { who: string; faults: Faults },
): Map<string, number> {
  const shapes = new Map<string, number>();
  for (const line of log.split("\n")) {
    const [, level] = framed.exec(line) ?? [];
    // The other end of a connection that was killed says so with EPIPE, too.
    if (line.includes("connection failed")) continue;
    if (line === "" || level === "INFO " || level === "DEBUG") continue;
    if (level === undefined) addFault(faults, "own log", `${who} crashed: ${line}`);
    else if (badDescriptor.test(line)) addFault(faults, "own log", `${who}: ${line}`);
    else shapes.set(shapeOf(line), (shapes.get(shapeOf(line)) ?? 0) + 1);
  }
  return shapes;
}

/** A line without its time, ids and numbers. */
function shapeOf(line: string): string {
  return line
    .replace(/^\S+ /, "")
    .replaceAll(/\b[0-9a-f]{12,}\b/g, "ID")
    .replaceAll(/\/tmp\/\S+/g, "PATH")
    .replaceAll(/\d+/g, "N")
    .slice(0, 160);
}
