// Adapts a node:net socket to a Wire (byte_stream.ts).
import type { Socket } from "node:net";
import type { Wire } from "./byte_stream.ts";

export function wireOf(socket: Socket): Wire {
  return {
    async *chunks() {
      for await (const chunk of socket) yield chunk as Buffer;
    },
    send: (...parts) =>
      new Promise((resolve, reject) => {
        const done = (error?: Error | null) => (error ? reject(error) : resolve());
        socket.write(Buffer.concat(parts), done);
      }),
    close: () => {
      socket.destroy();
    },
  };
}
