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
  let bytes: Buffer = Buffer.alloc(0);
  for (;;) {
    const next = await chunks.next();
    if (next.done === true) throw new Error("the connection ended in an HTTP head");
    bytes = Buffer.concat([bytes, next.value]);
    const end = bytes.indexOf("\r\n\r\n");
    if (end === -1 && bytes.length < headBytesMax) continue;
    if (end === -1 || end > headBytesMax)
      throw new Error(`an HTTP head over ${headBytesMax} bytes`);
    const behind = bytes.subarray(end + 4);
    const rest: Wire = {
      async *chunks() {
        if (behind.length > 0) yield behind;
        yield* { [Symbol.asyncIterator]: () => chunks };
      },
      send: (...parts) => wire.send(...parts),
      close: () => wire.close(),
    };
    return { head: parseHead(bytes.toString("latin1", 0, end)), rest };
  }
}

/** @throws for an invalid header line. */
export function parseHead(text: string): Head {
  const [line = "", ...lines] = text.split("\r\n");
  const headers = new Map<string, string[]>();
  for (const one of lines) {
    const match = /^([!#$%&'*+.^_`|~\w-]+):[ \t]*(.*?)[ \t]*$/.exec(one);
    if (match === null) throw new Error(`no HTTP header: ${quoted(one, 100)}`);
    const name = match[1]!.toLowerCase();
    headers.set(name, [...(headers.get(name) ?? []), match[2]!]);
  }
  return { line, headers };
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
