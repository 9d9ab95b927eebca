// Reads a container's log in CRI's format: "TIME STREAM TAGS TEXT\n", where the tag P says that the
// line goes on in the next entry (kubernetes, kubelet-cri-logging).
import { watch } from "node:fs";
import { type FileHandle, open, stat } from "node:fs/promises";
import { errnoOf } from "../base/errors.ts";
import type { StreamName } from "./output.ts";

export type LogOptions = {
  /** How many of the last lines to begin with; all when undefined. */
  tail?: number | undefined;
  /** Keep reading until this is aborted and what was written before it is read; else to the end. */
  follow?: AbortSignal | undefined;
  timestamps?: boolean | undefined;
};
export type Piece = { stream: StreamName; bytes: Uint8Array };

const chunkBytes = 256 * 1024;
const space = 0x20;
const newline = 0x0a;
// Where inotify is not there (some network file systems), this is how late output comes.
const pollMs = 500;

/** What the container wrote, in order; neighbouring entries of one stream come as one piece. */
export async function* readLog(path: string, options: LogOptions = {}): AsyncGenerator<Piece> {
  await using log = await openLog(path, options.tail);
  using changes = watchFile(path);
  const middleOfLine = new Set<StreamName>();
  for (;;) {
    // Asked first: what was written before the container's end is then certainly read.
    const last = options.follow === undefined || options.follow.aborted;
    const seen = changes.count();
    for await (const lines of log.lines()) {
      yield* pieces(lines, options.timestamps ? middleOfLine : undefined);
    }
    if (await log.reopenIfRotated()) {
      changes.restart();
      continue;
    }
    if (last) return;
    await changes.after(seen, options.follow);
  }
}

async function openLog(path: string, tail: number | undefined) {
  let file = await open(path);
  let offset = tail === undefined ? 0 : await tailOffset(file, tail);
  let rest = Buffer.alloc(0);
  const buffer = Buffer.alloc(chunkBytes);

  /** Every whole line that is there now; an unfinished one waits for its end. */
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

  /** The kubelet renames a log and has a new one opened: go on there. */
  async function reopenIfRotated(): Promise<boolean> {
    const now = await stat(path).catch((error: unknown) => {
      if (errnoOf(error) === "ENOENT") return undefined;
      throw error;
    });
    const ours = await file.stat();
    if (now === undefined || (now.ino === ours.ino && now.size >= offset)) return false;
    await file.close();
    file = await open(path);
    offset = 0;
    rest = Buffer.alloc(0);
    return true;
  }

  return { lines, reopenIfRotated, [Symbol.asyncDispose]: () => file.close() };
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

/** Where the last `count` lines begin. Entries that a later one finishes belong to its line. */
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

/** whole: the bytes are the whole file, so their first line is not cut. */
function lastLines(bytes: Buffer, count: number, whole: boolean): number | undefined {
  let end = bytes.lastIndexOf(newline) + 1;
  let finished = 0;
  for (let atEnd = true; end > 0; atEnd = false) {
    const start = bytes.lastIndexOf(newline, end - 2) + 1;
    if (start === 0 && !whole) return undefined; // Perhaps cut: a larger window will tell.
    // The last one is a line's end even without a newline of its own.
    if (atEnd || parseEntry(bytes.subarray(start, end - 1))?.partial !== true) finished++;
    if (finished > count) return end;
    end = start;
  }
  return undefined;
}

export type LogEntry = { time: Buffer; stream: StreamName; partial: boolean; text: Buffer };

/** One line of the file without its newline; undefined if it is not in CRI's format. */
export function parseEntry(line: Buffer): LogEntry | undefined {
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

const newlineBytes = Buffer.from("\n");
const spaceBytes = Buffer.from(" ");

/** middleOfLine: the streams whose last entry was partial; given where times are wanted. */
function* pieces(lines: readonly Buffer[], middleOfLine?: Set<StreamName>): Generator<Piece> {
  let stream: StreamName = "stdout";
  let parts: Buffer[] = [];
  for (const line of lines) {
    // What is in another format is shown as it is.
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

/** Counts the changes of a file, so that none between a read and the wait for more is missed. */
function watchFile(path: string) {
  let count = 0;
  let wake = () => {};
  const start = () => {
    const watcher = watch(path, { persistent: false }, () => {
      count++;
      wake();
    });
    watcher.on("error", () => {}); // Polling goes on.
    return watcher;
  };
  let watcher = start();
  return {
    count: () => count,
    /** Follows the path to a new file. */
    restart(): void {
      watcher.close();
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
    [Symbol.dispose]: () => watcher.close(),
  };
}
