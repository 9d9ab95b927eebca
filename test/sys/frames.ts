// Encodes ttrpc in NRI's multiplexer by hand, for the peer of src/sys/ttrpc.ts in tests.
import type { Socket } from "node:net";

/** A frame of the multiplexer. */
export function frame(connection: number, payload: Uint8Array): Buffer {
  const head = Buffer.alloc(8);
  head.writeUInt32BE(connection, 0);
  head.writeUInt32BE(payload.length, 4);
  return Buffer.concat([head, payload]);
}

/** A message of ttrpc: type 1 asks, type 2 answers. */
export function message(stream: number, type: number, body: Uint8Array): Buffer {
  const head = Buffer.alloc(10);
  head.writeUInt32BE(body.length, 0);
  head.writeUInt32BE(stream, 4);
  head[8] = type;
  return Buffer.concat([head, body]);
}

/** A field of protobuf with its length; tag: number × 8 + 2. */
export function field(tag: number, value: Uint8Array): Buffer {
  const length: number[] = [];
  let rest = value.length;
  for (; rest > 0x7f; rest >>>= 7) length.push((rest & 0x7f) | 0x80);
  return Buffer.concat([Buffer.from([tag, ...length, rest]), value]);
}

export function request(service: string, method: string, payload: Uint8Array): Buffer {
  const parts = [field(10, Buffer.from(service)), field(18, Buffer.from(method))];
  return Buffer.concat([...parts, field(26, payload)]);
}

export type Received = { connection: number; stream: number; type: number; body: Buffer };

/** Takes apart what comes, message by message. */
export function onMessage(socket: Socket, use: (received: Received) => void): void {
  let frames = Buffer.alloc(0);
  const bytes: Record<number, Buffer> = {};
  socket.on("data", (chunk) => {
    frames = Buffer.concat([frames, chunk]);
    while (frames.length >= 8 && frames.length >= 8 + frames.readUInt32BE(4)) {
      const connection = frames.readUInt32BE(0);
      const end = 8 + frames.readUInt32BE(4);
      let all = Buffer.concat([bytes[connection] ?? Buffer.alloc(0), frames.subarray(8, end)]);
      frames = frames.subarray(end);
      while (all.length >= 10 && all.length >= 10 + all.readUInt32BE(0)) {
        const length = 10 + all.readUInt32BE(0);
        const [stream, type] = [all.readUInt32BE(4), all[8]!];
        use({ connection, stream, type, body: all.subarray(10, length) });
        all = all.subarray(length);
      }
      bytes[connection] = all;
    }
  });
}
