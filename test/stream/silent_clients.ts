// Opens unauthenticated connections to 127.0.0.1, for tests, and reopens each that is closed. `bun
// silent_clients.ts PORT COUNT KIND`: silent sends nothing; half begins a request; tls shakes hands and is
// silent then; churn closes each itself after 50 ms. Prints each second how many it has opened.
import { connect, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";

const [port, count, kind] = process.argv.slice(2);
let opened = 0;

function open(): void {
  const options = { host: "127.0.0.1", port: Number(port), rejectUnauthorized: false };
  const socket: Socket = kind === "tls" ? connectTls(options) : connect(options);
  opened++;
  socket.on("error", () => {});
  socket.once("close", () => setTimeout(open, 1));
  if (kind === "half") socket.write("GET /exec/");
  if (kind === "churn") setTimeout(() => socket.destroy(), 50);
  socket.resume();
}

for (let index = 0; index < Number(count); index++) open();
setInterval(() => process.stdout.write(`${opened}\n`), 1000);
process.stdin.on("end", () => process.exit()).resume();
