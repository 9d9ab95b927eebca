// The head of an HTTP/1.1 request that asks for another protocol, and the answers to it; and the same
// from the client's side. What follows the head on the connection is the other protocol's.
import { quoted } from "../base/text.ts";
import type { ByteStream, Wire } from "./byte_stream.ts";

export type Head = {
  /** "GET /exec/abc HTTP/1.1", "HTTP/1.1 101 Switching Protocols" */
  line: string;
  /** Names in lower case; of one that came several times all values. */
  headers: Map<string, string[]>;
};

const headBytesMax = 16 << 10;

/**
 * Reads a head and gives the connection back, with what came behind it.
 * @throws for what is no head, for one that is too long, and when the peer ends before it is whole.
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

/** @throws for a line that is no header. */
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

/** The words of a header that is a list, over all its lines. */
export function words(head: Head, name: string): string[] {
  const lines = head.headers.get(name) ?? [];
  return lines.flatMap((line) => line.split(",").map((word) => word.trim())).filter(Boolean);
}

/** A head as it is sent: first line, then headers. */
export function headText(line: string, headers: [string, string][]): Buffer {
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`);
  return Buffer.from(`${line}\r\n${lines.join("")}\r\n`, "latin1");
}

/** Answers a request that gets no other protocol, and ends the connection. */
export async function refuse(
  stream: ByteStream,
  status: string,
  options: { message: string; headers?: [string, string][] },
): Promise<void> {
  const body = Buffer.from(`${options.message}\n`);
  const headers: [string, string][] = [
    ["Content-Type", "text/plain; charset=utf-8"],
    ["Content-Length", String(body.length)],
    ["Connection", "close"],
    ...(options.headers ?? []),
  ];
  await stream.send(headText(`HTTP/1.1 ${status}`, headers), body);
  await stream.endWrite();
}
