// Tests the forwarding of a connection to a port of this machine, with a client made of plain functions.
import { afterAll, expect, test } from "bun:test";
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { NetnsSockets } from "../../../src/node/netns_sockets.ts";
import { forward, localhost, type ForwardClient } from "../../../src/stream/port_forward.ts";
import { Poller } from "../../../src/sys/poller.ts";

const poller = new Poller();
using sockets = new NetnsSockets({ netns: undefined, folder: "" });
const target = { sockets, addresses: localhost, poller };
const servers: Server[] = [];
afterAll(() => {
  for (const server of servers) server.close();
  poller[Symbol.dispose]();
});

async function serve(onSocket: (socket: Socket) => void): Promise<number> {
  const server = createServer({ allowHalfOpen: true }, onSocket);
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return (server.address() as AddressInfo).port;
}

/** Sends the chunks, then half-closes; notes what it is told. */
function client(chunks: string[], write?: (bytes: Uint8Array) => Promise<void>) {
  const noted: string[] = [];
  const abort = new AbortController();
  const self: ForwardClient = {
    async *chunks() {
      for (const chunk of chunks) yield Buffer.from(chunk);
    },
    hangup: abort.signal,
    write: async (bytes) => {
      await write?.(bytes);
      noted.push(`got ${Buffer.from(bytes).toString()}`);
    },
    end: async () => void noted.push("end"),
    close: async () => void noted.push("close"),
    fail: async (message) => void noted.push(`failed: ${message}`),
  };
  return { self, noted, abort };
}

test("both ways are copied until both ends", async () => {
  const port = await serve((socket) => {
    const parts: string[] = [];
    socket.on("data", (part) => parts.push(part.toString()));
    socket.on("end", () => socket.end(`had ${parts.join("")}`));
  });
  const { self, noted } = client(["one ", "two"]);
  await forward(self, { ...target, port });
  expect(noted).toEqual(["got had one two", "end", "close"]);
});

test("a port where nobody listens is told once, and nothing else", async () => {
  const port = await serve(() => {});
  servers.pop()!.close();
  const { self, noted } = client([]);
  await forward(self, { ...target, port });
  expect(noted).toHaveLength(1);
  expect(noted[0]).toStartWith(`failed: cannot forward to port ${port}: `);
  expect(noted[0]).toContain("ECONNREFUSED");
});

test("what a client sent before it disconnected reaches the port, and nothing is sent to it", async () => {
  const received = Promise.withResolvers<string>();
  const port = await serve((socket) => {
    socket.on("data", (part) => received.resolve(part.toString()));
    socket.on("end", () => socket.end("too late"));
  });
  const { self, noted, abort } = client(["last words"]);
  const forwarded = forward(self, { ...target, port });
  expect(await received.promise).toBe("last words");
  abort.abort();
  await forwarded;
  expect(noted.filter((note) => note !== "close" && note !== "end")).toEqual([]);
});

test("a client that cannot be written to ends the connection, unless it has disconnected", async () => {
  const port = await serve((socket) => socket.end("greeting"));
  const broken = client([], () => Promise.reject(new Error("broken pipe")));
  const error = await forward(broken.self, { ...target, port }).then(String, String);
  expect(error).toContain("broken pipe");
  expect(broken.noted).toEqual(["close"]);
  const gone = client([], () => {
    gone.abort.abort();
    return Promise.reject(new Error("broken pipe"));
  });
  await forward(gone.self, { ...target, port });
  expect(gone.noted).toEqual(["close"]);
});

test("the addresses are tried in their order", async () => {
  const port = await serve((socket) => socket.end("here"));
  const { self, noted } = client([]);
  await forward(self, { ...target, addresses: ["127.0.0.2", "::1", "127.0.0.1"], port });
  expect(noted).toEqual(["got here", "end", "close"]);
  const other = client([]);
  await forward(other.self, { ...target, addresses: ["127.0.0.2"], port });
  expect(other.noted).toHaveLength(1);
  expect(other.noted[0]).toContain(`127.0.0.2:${port}`);
});
