// Tests PortForward to slow, unresponsive or saturated servers, over WebSocket's channels and over SPDY: sent
// data arrives, and every connection is closed.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { openSpdy } from "../../src/cli/stream_client.ts";
import type { Descriptor } from "../../src/sys/descriptor.ts";
import { check } from "../../src/sys/libc.ts";
import { accept, listenTcp } from "../../src/sys/tcp.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { ChannelsClient } from "../stream/channels_client.ts";
import { collected, seeded } from "../stream/wires.ts";

let daemon: Daemon;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ network: false });
  podId = await daemon.runPod(daemon.hostPodConfig());
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const protocols = ["", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
const random = seeded(20_261_122);
const payload = Buffer.from(Array.from({ length: 5_000_003 }, () => random(256)));

/** A server on the node for as long as the test runs. */
async function serve(onConnection: (socket: Socket) => void) {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on("error", () => {});
    onConnection(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return { port, [Symbol.dispose]: () => void server.close() };
}

async function forward(port: number[], protocol = "v4.channel.k8s.io"): Promise<ChannelsClient> {
  const { url } = await daemon.client.PortForward({ pod_sandbox_id: podId, port });
  return ChannelsClient.open(url, protocol);
}

/** A listener whose queue is full, so that one more connect waits. */
function fullListener() {
  const { listener, port } = listenTcp("127.0.0.1", 0);
  check("listen", "", listener.fd, 0);
  const fillers = [0, 1].map(() =>
    Bun.connect({ hostname: "127.0.0.1", port, socket: { data() {} } }),
  );
  for (const filler of fillers) filler.catch(() => {}); // refused at the end
  const taken: Descriptor[] = [];
  const timers: ReturnType<typeof setInterval>[] = [];
  return {
    port,
    filled: Promise.any(fillers), // a queue of length 0 holds one
    /** Takes whoever comes from now on. */
    drain() {
      const take = () => {
        for (let next = accept(listener); next; next = accept(listener)) taken.push(next);
      };
      timers.push(setInterval(take, 20));
    },
    [Symbol.dispose]() {
      for (const timer of timers) clearInterval(timer);
      for (const one of [listener, ...taken]) one.close();
      for (const filler of fillers) filler.then((socket) => socket.end()).catch(() => {});
    },
  };
}

describe.each(protocols)("over WebSocket by %j", (protocol) => {
  test("each port has two channels, which begin with its number; bytes go both ways", async () => {
    using echo = await serve((socket) => socket.pipe(socket));
    using talker = await serve((socket) => socket.end(payload));
    const client = await forward([echo.port, talker.port, echo.port], protocol);
    for (let at = 0; at < payload.length; at += 60_001) {
      await client.send(0, payload.subarray(at, at + 60_001));
    }
    await client.send(4, Buffer.from("third"));
    await client.send(1, Buffer.from("on an error's channel"));
    await client.send(9, Buffer.from("on none"));
    const little = (port: number) => Buffer.from([port & 255, port >> 8]);
    const expected = [
      Buffer.concat([little(echo.port), payload]),
      little(echo.port),
      Buffer.concat([little(talker.port), payload]),
      little(talker.port),
      Buffer.concat([little(echo.port), Buffer.from("third")]),
      little(echo.port),
    ];
    await until("all bytes came", () =>
      expected.every(({ length }, channel) => client.bytesOf(channel).length >= length),
    );
    expected.forEach((bytes, channel) => expect(client.bytesOf(channel).equals(bytes)).toBe(true));
    expect(client.messages.slice(0, 2).map(({ channel }) => channel)).toEqual([0, 1]);
    client.vanish();
  });

  test("a closed port is reported on its channel, other connections continue", async () => {
    using talker = await serve((socket) => void setTimeout(() => socket.end("late"), 300));
    const closed = 1; // nobody listens there, and the kernel gives it to nobody
    const client = await forward([closed, talker.port], protocol);
    await client.ended; // both ports have ended
    expect(client.bytesOf(1).subarray(2).toString()).toMatch(/port \d+: .*ECONNREFUSED/);
    expect(client.bytesOf(2).subarray(2).toString()).toBe("late");
  });

  test.each([
    ["that reads slowly", 0, 5],
    ["that is busy for three seconds", 3_000, 0],
  ])("all that was sent before the client closed gets to a port %s", async (_, busyMs, restMs) => {
    const came: Buffer[] = [];
    let ended = false;
    using slow = await serve((socket) => {
      socket.write("a greeting that nobody reads");
      socket.on("data", (chunk) => {
        came.push(chunk);
        socket.pause();
        setTimeout(() => socket.resume(), came.length === 1 ? busyMs : restMs);
      });
      socket.once("end", () => (ended = true));
    });
    const client = await forward([slow.port], protocol);
    await client.send(0, payload);
    await client.close();
    await until("the port met the end", () => ended);
    expect(Buffer.concat(came).equals(payload)).toBe(true);
  });
});

test("without ports, or by exec's protocols, channels are refused", async () => {
  expect(forward([])).rejects.toThrow(" 403 ");
  expect(forward([80], "v5.channel.k8s.io")).rejects.toThrow(" 403 ");
});

/** The daemon's sockets that are connected, or connecting, to a port of the node. */
function socketsTo(port: number): number {
  const of = `/proc/${daemon.pid}/fd`;
  const own = new Set(readdirSync(of).map((fd) => linkAt(join(of, fd))));
  const rows = readFileSync("/proc/net/tcp", "utf8").trim().split("\n").slice(1);
  return rows.filter((row) => {
    const [, , remote, , , , , , , inode] = row.trim().split(/\s+/);
    return Number.parseInt(remote!.split(":")[1]!, 16) === port && own.has(`socket:[${inode}]`);
  }).length;
}

function linkAt(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return ""; // closed meanwhile
  }
}

/** One forwarded connection. */
async function connect(transport: string, port: number) {
  if (transport === "WebSocket") {
    const client = await forward([port]);
    return {
      send: (bytes: Buffer) => client.send(0, bytes),
      told: () => client.bytesOf(1).subarray(2).toString(),
      vanish: () => client.vanish(),
    };
  }
  const { url } = await daemon.client.PortForward({ pod_sandbox_id: podId });
  const session = await openSpdy(url, "portforward.k8s.io");
  session.run().catch(() => {});
  const headers = { port: String(port), requestid: "1" };
  const error = await session.open({ ...headers, streamtype: "error" });
  const data = await session.open({ ...headers, streamtype: "data" });
  let told = "";
  void collected(error.chunks()).then((text) => (told = text));
  return {
    send: (bytes: Buffer) => data.write(bytes),
    told: () => told,
    vanish: () => session.wire.close(),
  };
}

const transports = ["SPDY", "WebSocket"];

test("a connect that would succeed after its deadline leaves no socket", async () => {
  const connectLate = async (transport: string) => {
    using full = fullListener();
    await full.filled;
    const client = await connect(transport, full.port);
    await until("the client is told", () => client.told().includes("deadline exceeded"));
    full.drain(); // the kernel tries again 15 s after the first time
    await Bun.sleep(8_000);
    expect(socketsTo(full.port)).toBe(0);
    client.vanish();
  };
  await Promise.all(transports.map(connectLate));
});

describe.each(transports)("over %s", (transport) => {
  test("a disconnected client leaves no connection to a server that never reads", async () => {
    const { listener, port } = listenTcp("127.0.0.1", 0);
    const client = await connect(transport, port);
    const typing = client.send(Buffer.alloc(32 << 20)).catch(() => {});
    await until("the daemon is connected", () => socketsTo(port) === 1);
    client.vanish();
    await typing;
    await until("the daemon has closed it", () => socketsTo(port) === 0);
    listener.close();
  });

  test("a pending connect ends at once when its client disconnects", async () => {
    using full = fullListener();
    await full.filled;
    const client = await connect(transport, full.port);
    await until("the connect is pending", () => socketsTo(full.port) === 1);
    const start = performance.now();
    client.vanish();
    await until("it has ended", () => socketsTo(full.port) === 0);
    expect(performance.now() - start).toBeLessThan(9_000); // by itself it ends after ten seconds
  });
});
