// Tests the stream server with clients on loopback: which requests it accepts, and when it disconnects.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { once } from "node:events";
import { createConnection, type Socket } from "node:net";
import { StreamServer, type StreamSession } from "../../../src/stream/server.ts";
import { ByteStream, type Wire } from "../../../src/sys/byte_stream.ts";
import { Poller } from "../../../src/sys/poller.ts";
import { connectTcp, tcpSocket } from "../../../src/sys/tcp.ts";
import { until } from "../../expect.ts";
import { capturedLog } from "../fakes.ts";

const idleMs = 1_500;
const poller = new Poller();
const { log, lines: written } = capturedLog("info");
let server: StreamServer;
beforeAll(() => {
  server = new StreamServer({ address: "127.0.0.1", port: 0, poller, log, idleMs });
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  poller[Symbol.dispose]();
});

/** Repeats what the client sends until it half-closes; "bye" ends the session. */
function echo(
  kind: StreamSession["kind"] = "exec",
  pod = "a-pod",
): StreamSession & { hangups: number } {
  const session = {
    pod,
    kind,
    spdy: [],
    websocket: ["v5.channel.k8s.io", "v4.channel.k8s.io"],
    hangups: 0,
    serve: async (wire: Parameters<StreamSession["serve"]>[0], _: unknown, hangup: AbortSignal) => {
      hangup.addEventListener("abort", () => session.hangups++);
      for await (const chunk of wire.chunks()) {
        if (chunk.toString() === "bye") return;
        await wire.send(chunk);
      }
    },
  };
  return session;
}

type Client = { socket: Socket; heard: () => string; closed: Promise<void> };

function connect(text: string, port = server.port): Client {
  const socket = createConnection({ port, host: "127.0.0.1" });
  let all = "";
  socket.on("data", (chunk) => (all += chunk.toString()));
  socket.on("error", () => {});
  socket.write(text);
  const closed = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  return { socket, heard: () => all, closed };
}

/** Connects a client that reads only when it is told to. */
async function unreadClient(port: number): Promise<ByteStream> {
  const client = new ByteStream(tcpSocket("IPv4"), poller);
  const signal = AbortSignal.timeout(30_000);
  await connectTcp(client.descriptor, { address: "127.0.0.1", port, poller, signal });
  return client;
}

function upgrade(path: string, more = ""): string {
  const lines = [
    `GET ${path} HTTP/1.1`,
    "Host: x",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol: v4.channel.k8s.io",
  ];
  return `${lines.join("\r\n")}\r\n${more}\r\n`;
}

async function hears(client: Client, text: string): Promise<void> {
  while (!client.heard().includes(text)) await Bun.sleep(5);
}

describe("a request", () => {
  test("with a token is served, once", async () => {
    const path = server.offer(echo());
    const client = connect(upgrade(path));
    await hears(client, "\r\n\r\n");
    expect(client.heard()).toStartWith("HTTP/1.1 101 ");
    expect(client.heard()).toContain("v4.channel.k8s.io");
    client.socket.write("ping");
    await hears(client, "\r\n\r\nping");
    client.socket.write("bye");
    await client.closed;
    const again = connect(upgrade(path));
    await again.closed;
    expect(again.heard()).toStartWith("HTTP/1.1 404 ");
    expect(again.heard()).toContain("used or expired");
  });

  test("for another kind of session than its token's is refused", async () => {
    const path = server.offer(echo()).replace("/exec/", "/attach/");
    const client = connect(upgrade(path));
    await client.closed;
    expect(client.heard()).toStartWith("HTTP/1.1 404 ");
  });

  test("that is no HTTP is refused", async () => {
    server.offer(echo());
    const client = connect("hello\r\n\r\n");
    await client.closed;
    expect(client.heard()).toStartWith("HTTP/1.1 400 ");
  });

  test("that is refused while its client still sends a body is answered", async () => {
    const options = { address: "127.0.0.1", port: 0, poller, log, idleMs: 60_000 };
    await using patient = new StreamServer(options);
    using client = await unreadClient(patient.port);
    const length = 16 << 20;
    await client.send(Buffer.from(`POST /exec/none HTTP/1.1\r\nContent-Length: ${length}\r\n\r\n`));
    const part = Buffer.alloc(64 << 10);
    for (let sent = 0; sent < length; sent += part.length) await client.send(part);
    const count = await client.read(part);
    expect(part.toString("latin1", 0, count)).toStartWith("HTTP/1.1 404 ");
  });

  test("of a client that comes before the first session is answered", async () => {
    const options = { address: "127.0.0.1", port: 0, poller, log, idleMs: 60_000 };
    await using fresh = new StreamServer(options);
    const socket = createConnection({ port: fresh.port, host: "127.0.0.1" });
    socket.write(upgrade("/exec/of-the-daemon-before"));
    const [answer] = (await once(socket, "data")) as [Buffer];
    expect(answer.toString()).toStartWith("HTTP/1.1 404 ");
  });

  test("without a protocol that the session knows leaves no session", async () => {
    const session = echo();
    const client = connect(upgrade(server.offer(session)).replace("v4.channel", "v9.channel"));
    await client.closed;
    expect(client.heard()).toStartWith("HTTP/1.1 40");
    expect(session.hangups).toBe(0);
  });
});

describe("when all places are taken", () => {
  test("a pod that has few gets one from the pod that has most, and the latter gets 503", async () => {
    const options = { address: "127.0.0.1", port: 0, poller, log, idleMs: 60_000 };
    await using full = new StreamServer({ ...options, acceptedMax: 4 });
    const open = (pod: string) => connect(upgrade(full.offer(echo("exec", pod))), full.port);
    const greedy: Client[] = [];
    for (let count = 0; count < 4; count++) {
      greedy.push(open("greedy"));
      await hears(greedy.at(-1)!, "101");
    }
    const refused = open("greedy");
    await refused.closed;
    expect(refused.heard()).toContain("503 ");
    expect(refused.heard()).toContain("4 of this pod");
    greedy[0]!.socket.write("in use");
    await hears(greedy[0]!, "in use");
    const others = [open("quiet"), open("another")];
    for (const other of others) await hears(other, "101");
    await Promise.all([greedy[1]!.closed, greedy[2]!.closed]);
    expect([greedy[0]!, greedy[3]!].map(({ socket }) => socket.destroyed)).toEqual([false, false]);
    const last = open("quiet"); // "greedy" has only one more
    await last.closed;
    expect(last.heard()).toContain("503 ");
    for (const { socket } of [...greedy, ...others]) socket.destroy();
  });
});

describe("a session", () => {
  test("ends when its client disconnects", async () => {
    const session = echo();
    const client = connect(upgrade(server.offer(session)));
    await hears(client, "101");
    const { served } = server;
    client.socket.destroy();
    while (session.hangups === 0 || server.served === served) await Bun.sleep(5);
    expect(session.hangups).toBe(1);
  });

  test("is closed when it is idle, and not while it is used", async () => {
    const session = echo();
    const client = connect(upgrade(server.offer(session)));
    await hears(client, "101");
    written.length = 0;
    for (let part = 0; part < 6; part++) {
      client.socket.write(`part${part}`);
      await hears(client, `part${part}`);
      await Bun.sleep(idleMs / 3);
    }
    expect(client.socket.destroyed).toBe(false);
    await client.closed;
    expect(session.hangups).toBe(1);
    expect(written.join("")).toContain("closing an idle stream");
  });

  test("that has ended keeps its connection while the client, which goes on sending, reads the rest", async () => {
    const text = Buffer.alloc(4 << 20, "x");
    const session = { ...echo(), serve: (wire: Wire) => wire.send(text) };
    const options = { address: "127.0.0.1", port: 0, poller, log, idleMs: 60_000 };
    await using patient = new StreamServer(options);
    using client = await unreadClient(patient.port);
    await client.send(Buffer.from(upgrade(patient.offer(session))));
    const buffer = new Uint8Array(64 << 10);
    let received = 0;
    for (let count = -1; count !== 0; received += count) {
      count = await client.read(buffer);
      await client.send(Buffer.from("x"));
      await Bun.sleep(50);
    }
    expect(received).toBeGreaterThan(text.length);
  });

  test("that has ended is closed after a while though its client is not", async () => {
    const session = { ...echo(), serve: () => Promise.resolve() };
    const options = { address: "127.0.0.1", port: 0, poller, log, idleMs: 60_000, stuckMs: 300 };
    await using impatient = new StreamServer(options);
    using client = await unreadClient(impatient.port);
    await client.send(Buffer.from(upgrade(impatient.offer(session))));
    await until("its client is gone", () => impatient.served === 1);
  });
});
