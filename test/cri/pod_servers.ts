// Runs servers in a pod's network namespace for port_forward.test.ts; each has its own behaviour.
import { createServer, type Socket } from "node:net";

const servers: [number, string, (socket: Socket) => void][] = [
  [8001, "127.0.0.1", (socket) => socket.pipe(socket)],
  [8002, "127.0.0.1", (socket) => socket.resume().once("end", () => socket.end("all read"))],
  [8003, "127.0.0.1", (socket) => socket.end("only this")],
  [8004, "::1", (socket) => socket.end("version six")],
  [8005, "127.0.0.1", (socket) => socket.end(Buffer.alloc(20_000_000))],
  [8006, "127.0.0.1", (socket) => socket.resume().once("end", () => socket.end())],
];

let left = servers.length;
let open = 0;
for (const [port, host, serve] of servers) {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    open++;
    socket.on("error", () => {});
    socket.once("close", () => open--);
    serve(socket);
  });
  server.listen(port, host, () => {
    if (--left === 0) process.stdout.write("ready\n");
  });
}
/** How many connections there are, when asked. */
process.stdin.on("data", () => process.stdout.write(`${open}\n`));
