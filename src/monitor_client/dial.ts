// Connects to the monitor's socket.
import { createConnection, type Socket } from "node:net";

/** undefined: nobody takes the connection. */
export function dial(path: string): Promise<Socket | undefined> {
  return new Promise((resolve) => {
    const socket = createConnection(path);
    socket.once("connect", () => resolve(socket));
    socket.once("error", () => resolve(undefined));
  });
}
