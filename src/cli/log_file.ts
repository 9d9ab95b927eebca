// Reads a container's log in CRI's format: "TIME STREAM TAGS TEXT\n", where tag P means that the next entry
// continues the line (kubernetes, kubelet-cri-logging).
import { watch } from "node:fs";
import { type FileHandle, open, stat } from "node:fs/promises";
import { errnoOf } from "../base/errors.ts";
import type { StreamName } from "./output.ts";

export type LogOptions = {
  /** Start with this many of the last lines; undefined: all. */
  tail?: number | undefined;
  /** Follow the log until this is aborted and all earlier output is read; undefined: stop at the end. */
  follow?: AbortSignal | undefined;
  timestamps?: boolean | undefined;
  /** Skip what was written before, in milliseconds since the epoch. */
  sinceMs?: number | undefined;
  /** Skip the other stream. */
  only?: StreamName | undefined;
};
export type Piece = { stream: StreamName; bytes: Uint8Array };

const chunkBytes = 256 * 1024;
const space = 0x20;
const newline = 0x0a;
// Delay of output on file systems without inotify (some network file systems).
const pollMs = 500;

/** Yields the output in order; consecutive entries of one stream are one piece. */
export async function* readLog(path: string, options: LogOptions = {}): AsyncGenerator<Piece> {
  await using log = await openLog(path, options.tail);
  using changes = watchFile(path);
  const middleOfLine = new Set<StreamName>();
  async function* output(): AsyncGenerator<Piece> {
    for await (const lines of log.lines()) {
      const wanted = lines.filter((line) => isWanted(line, options));
      yield* pieces(wanted, options.timestamps ? middleOfLine : undefined);
    }
  }
  for (;;) {
    // Checked before reading, so that all output before the container's exit is read.
    const last = options.follow === undefined || options.follow.aborted;
    const seen = changes.count();
    yield* output();
    const change = await log.change();
    // Once the new file exists, the monitor writes no more to the old one; but it may have written since the last read.
    if (change === "rotated") yield* output();
    if (change !== "none") {
      await log.restart();
      changes.restart();
      continue;
    }
    if (last) return;
    await changes.after(seen, options.follow);
  }
}

async function openLog(path: string, tail: number | undefined) {
  let file = await open(path);
  let next: FileHandle | undefined;
  let offset = tail === undefined ? 0 : await tailOffset(file, tail);
  let rest = Buffer.alloc(0);
  const buffer = Buffer.alloc(chunkBytes);

  /** Yields the complete lines so far; keeps an incomplete one for the next call. */
  async function* lines(): AsyncGenerator<Buffer[]> {
    for (;;) {
      const { bytesRead } = await file.read(buffer, 0, chunkBytes, offset);
      if (bytesRead === 0) return;
      offset += bytesRead;
      const bytes = Buffer.concat([rest, buffer.subarray(0, bytesRead)]);
      const end = bytes.lastIndexOf(newline) + 1;
      rest = bytes.subarray(end);
      yield splitLines(bytes.subarray(0, end));
    }
  }

  /** Opens the new file, too, if the kubelet has rotated the log: it may be rotated again at any time. */
  async function change(): Promise<"none" | "truncated" | "rotated"> {
    const now = await ifExists(stat(path));
    const opened = await file.stat();
    if (now?.ino === opened.ino) return now.size < offset ? "truncated" : "none";
    next = await ifExists(open(path));
    return next === undefined ? "none" : "rotated";
  }

  /** Continues at the beginning, of the new file if there is one. */
  async function restart(): Promise<void> {
    if (next !== undefined) {
      await file.close();
      file = next;
      next = undefined;
    }
    offset = 0;
    rest = Buffer.alloc(0);
  }

  const close = async () => {
    await file.close();
    await next?.close();
  };
  return { lines, change, restart, [Symbol.asyncDispose]: close };
}

async function ifExists<T>(result: Promise<T>): Promise<T | undefined> {
  try {
    return await result;
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

function splitLines(bytes: Buffer): Buffer[] {
  const lines: Buffer[] = [];
  for (let start = 0; start < bytes.length;) {
    const end = bytes.indexOf(newline, start);
    lines.push(bytes.subarray(start, end));
    start = end + 1;
  }
  return lines;
}

/** Returns the offset of the last `count` lines. Partial entries belong to the line that they start. */
async function tailOffset(file: FileHandle, count: number): Promise<number> {
  const { size } = await file.stat();
  if (count === 0) return size;
  for (let window = 64 * 1024; ; window *= 4) {
    const start = Math.max(0, size - window);
    const bytes = Buffer.alloc(size - start);
    await file.read(bytes, 0, bytes.length, start);
    const found = lastLines(bytes, count, start === 0);
    if (found !== undefined) return start + found;
    if (start === 0) return 0;
  }
}

/** whole: the bytes are the whole file, so their first line is complete. */
function lastLines(bytes: Buffer, count: number, whole: boolean): number | undefined {
  let end = bytes.lastIndexOf(newline) + 1;
  let finished = 0;
  for (let atEnd = true; end > 0; atEnd = false) {
    const start = bytes.lastIndexOf(newline, end - 2) + 1;
    if (start === 0 && !whole) return undefined; // Possibly cut off: retry with a larger window.
    // A final partial entry ends the last line.
    if (atEnd || parseEntry(bytes.subarray(start, end - 1))?.partial !== true) finished++;
    if (finished > count) return end;
    end = start;
  }
  return undefined;
}

type LogEntry = { time: Buffer; stream: StreamName; partial: boolean; text: Buffer };

/** Parses a line without its newline; undefined if it is not in CRI's format. */
function parseEntry(line: Buffer): LogEntry | undefined {
  const afterTime = line.indexOf(space);
  const afterStream = line.indexOf(space, afterTime + 1);
  const afterTags = line.indexOf(space, afterStream + 1);
  if (afterTime < 1 || afterStream < 0) return undefined;
  const stream = line.toString("latin1", afterTime + 1, afterStream);
  if (stream !== "stdout" && stream !== "stderr") return undefined;
  const tagsEnd = afterTags < 0 ? line.length : afterTags;
  const tags = line.toString("latin1", afterStream + 1, tagsEnd).split(":");
  const text = line.subarray(Math.min(tagsEnd + 1, line.length));
  return { time: line.subarray(0, afterTime), stream, partial: tags[0] === "P", text };
}

/** True for a line that the options do not exclude; lines in another format are never excluded. */
function isWanted(line: Buffer, { sinceMs, only }: LogOptions): boolean {
  if (sinceMs === undefined && only === undefined) return true;
  const entry = parseEntry(line);
  if (entry === undefined) return true;
  if (only !== undefined && entry.stream !== only) return false;
  return sinceMs === undefined || Date.parse(entry.time.toString("latin1")) >= sinceMs;
}

const newlineBytes = Buffer.from("\n");
const spaceBytes = Buffer.from(" ");

/** middleOfLine: streams whose last entry was partial; undefined: no timestamps. */
function* pieces(lines: readonly Buffer[], middleOfLine?: Set<StreamName>): Generator<Piece> {
  let stream: StreamName = "stdout";
  let parts: Buffer[] = [];
  for (const line of lines) {
    // Lines in another format are shown unchanged.
    const entry: Partial<LogEntry> = parseEntry(line) ?? {};
    if (entry.stream && entry.stream !== stream && parts.length > 0) {
      yield { stream, bytes: Buffer.concat(parts) };
      parts = [];
    }
    stream = entry.stream ?? stream;
    if (entry.time && middleOfLine && !middleOfLine.has(stream)) parts.push(entry.time, spaceBytes);
    parts.push(entry.text ?? line);
    if (!entry.partial) parts.push(newlineBytes);
    if (entry.partial) middleOfLine?.add(stream);
    else middleOfLine?.delete(stream);
  }
  if (parts.length > 0) yield { stream, bytes: Buffer.concat(parts) };
}

/** Counts a file's changes, so that none between a read and the following wait is missed. */
function watchFile(path: string) {
  let count = 0;
  let wake = () => {};
  const start = () => {
    try {
      const watcher = watch(path, { persistent: false }, () => {
        count++;
        wake();
      });
      return watcher.on("error", () => {}); // Polling continues.
    } catch {
      return undefined; // Rotated again, and the new file is not there yet: polling finds it.
    }
  };
  let watcher = start();
  return {
    count: () => count,
    /** Watches the new file of the path. */
    restart(): void {
      watcher?.close();
      watcher = start();
    },
    async after(seen: number, ended: AbortSignal | undefined): Promise<void> {
      if (count !== seen || ended?.aborted) return;
      const { promise, resolve } = Promise.withResolvers<void>();
      wake = resolve;
      const timer = setTimeout(resolve, pollMs);
      ended?.addEventListener("abort", wake, { once: true });
      await promise;
      ended?.removeEventListener("abort", wake);
      clearTimeout(timer);
    },
    [Symbol.dispose]: () => watcher?.close(),
  };
}
