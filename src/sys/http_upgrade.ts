// Reads and writes the heads of HTTP/1.1 upgrades to another protocol, for server and client. The bytes after
// the head belong to the other protocol.
import { quoted } from "../base/text.ts";
import type { ByteStream, Wire } from "./byte_stream.ts";

export type Head = {
  /** "GET /exec/abc HTTP/1.1", "HTTP/1.1 101 Switching Protocols" */
  line: string;
  /** Names in lower case, with all values of a repeated header. */
  headers: Map<string, string[]>;
};

const headBytesMax = 16 << 10;

/**
 * Reads a head; returns it with the bytes that arrived after it.
 * @throws for an invalid head, for one that is too long, and when the connection ends before it is complete.
 */
export async function readHead(wire: Wire): Promise<{ head: Head; rest: Wire }> {
  const chunks = wire.chunks()[Symbol.asyncIterator]();
  const begun = new HeadBytes();
  for (;;) {
    const next = await chunks.next();
    if (next.done === true) throw new Error("the connection ended in an HTTP head");
    const found = begun.add(next.value);
    if (found === undefined) continue;
    const { text, behind } = found;
    const rest: Wire = {
      async *chunks() {
        if (behind.length > 0) yield behind;
        yield* { [Symbol.asyncIterator]: () => chunks };
      },
      send: (...parts) => wire.send(...parts),
      close: () => wire.close(),
    };
    return { head: parseHead(text), rest };
  }
}

const blankLine = Buffer.from("\r\n\r\n");

/** The bytes of a head that is not complete. Each is copied and searched once, however small the chunks are. */
class HeadBytes {
  #bytes: Buffer = Buffer.alloc(0);
  #length = 0;

  /** Returns a complete head, and what came behind it. @throws if it is too long. */
  add(chunk: Buffer): { text: string; behind: Buffer } | undefined {
    const from = Math.max(0, this.#length - blankLine.length + 1);
    const bytes = this.#with(chunk);
    const end = bytes.indexOf(blankLine, from);
    if (end === -1 && bytes.length < headBytesMax) return undefined;
    if (end === -1 || end > headBytesMax) {
      throw new Error(`an HTTP head over ${headBytesMax} bytes`);
    }
    return {
      text: bytes.toString("latin1", 0, end),
      behind: bytes.subarray(end + blankLine.length),
    };
  }

  #with(chunk: Buffer): Buffer {
    const length = this.#length + chunk.length;
    if (length > this.#bytes.length) {
      const larger = Buffer.allocUnsafe(Math.max(length, 2 * this.#bytes.length));
      this.#bytes.copy(larger, 0, 0, this.#length);
      this.#bytes = larger;
    }
    chunk.copy(this.#bytes, this.#length);
    this.#length = length;
    return this.#bytes.subarray(0, length);
  }
}

/** @throws for an invalid header line. */
export function parseHead(text: string): Head {
  const [line = "", ...lines] = text.split("\r\n");
  const headers = new Map<string, string[]>();
  for (const one of lines) {
    const colon = one.indexOf(":");
    const isHeader = /^[!#$%&'*+.^_`|~\w-]+$/.test(one.slice(0, colon)) && !/[\r\n]/.test(one);
    if (colon === -1 || !isHeader) throw new Error(`no HTTP header: ${quoted(one, 100)}`);
    const name = one.slice(0, colon).toLowerCase();
    const values = headers.get(name);
    if (values === undefined) headers.set(name, [withoutBlanks(one.slice(colon + 1))]);
    else values.push(withoutBlanks(one.slice(colon + 1)));
  }
  return { line, headers };
}

/** Removes blanks and tabs at both ends. */
function withoutBlanks(text: string): string {
  const isBlank = (at: number) => text[at] === " " || text[at] === "\t";
  let [from, to] = [0, text.length];
  while (from < to && isBlank(from)) from++;
  while (to > from && isBlank(to - 1)) to--;
  return text.slice(from, to);
}

/** Returns the items of a list header, of all its lines. */
export function words(head: Head, name: string): string[] {
  const lines = head.headers.get(name) ?? [];
  return lines.flatMap((line) => line.split(",").map((word) => word.trim())).filter(Boolean);
}

/** Formats a head: first line, then headers. */
export function headText(line: string, headers: [string, string][]): Buffer {
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`);
  return Buffer.from(`${line}\r\n${lines.join("")}\r\n`, "latin1");
}

/** The answer to a request that is not upgraded; status: code and reason; message: its body, one line. */
export type Refused = { status: string; message: string; headers?: [string, string][] };

/** Answers a request that is not upgraded; the caller ends the connection. */
export async function refuse(
  stream: ByteStream,
  { status, message, headers: more = [] }: Refused,
): Promise<void> {
  const body = Buffer.from(`${message}\n`);
  const headers: [string, string][] = [
    ["Content-Type", "text/plain; charset=utf-8"],
    ["Content-Length", String(body.length)],
    ["Connection", "close"],
    ...more,
  ];
  await stream.send(headText(`HTTP/1.1 ${status}`, headers), body);
}
