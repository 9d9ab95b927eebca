// Tests PortForward: concurrent connections to localhost in a pod's network, each closed independently.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { readdirSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import type { SpdySession, SpdyStream } from "../../src/sys/spdy.ts";
import { SpdySession as Session } from "../../src/sys/spdy.ts";
import { tunnel, WebSocketConnection } from "../../src/sys/websocket.ts";
import { openSpdy, openWebSocket } from "../../src/cli/stream_client.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { collected } from "../stream/wires.ts";

let daemon: Daemon;
let podId: string;
let servers: ReturnType<typeof spawnServers>;
beforeAll(async () => {
  daemon = await startDaemon();
  podId = await daemon.runPod(daemon.podConfig());
  servers = spawnServers();
  expect(await nextLine()).toBe("ready");
});
afterAll(async () => {
  servers?.kill("SIGKILL");
  await daemon?.[Symbol.asyncDispose]();
});

function spawnServers() {
  const name = readdirSync("/run/netns").find((one) => one.endsWith(podId.slice(0, 32)))!;
  const script = join(import.meta.dirname, "pod_servers.ts");
  const argv = [`--net=/run/netns/${name}`, "--", process.execPath, script];
  return spawn("nsenter", argv, { stdio: ["pipe", "pipe", "inherit"] });
}

function nextLine(): Promise<string> {
  return new Promise((resolve) =>
    servers.stdout.once("data", (chunk: Buffer) => resolve(chunk.toString().trim())),
  );
}

/** As the servers in the pod see it. */
async function connections(): Promise<number> {
  const line = nextLine();
  servers.stdin.write("?");
  return Number(await line);
}

type Client = { session: SpdySession; end(): Promise<void> };

async function openTunnel(url: string): Promise<SpdySession> {
  const wire = await openWebSocket(url, "SPDY/3.1+portforward.k8s.io");
  const connection = new WebSocketConnection(wire, "client");
  return new Session(
    tunnel(connection, () => wire.close()),
    () => {},
  );
}

async function client(transport: string, pod_sandbox_id = podId): Promise<Client> {
  const { url } = await daemon.client.PortForward({ pod_sandbox_id });
  const session =
    transport === "SPDY" ? await openSpdy(url, "portforward.k8s.io") : await openTunnel(url);
  const running = session.run().catch(() => {});
  return { session, end: () => (session.wire.close(), running) };
}

let requests = 0;

async function connect({ session }: Client, port: number) {
  const headers = { port: String(port), requestid: String(requests++) };
  const error = await session.open({ ...headers, streamtype: "error" });
  await error.end();
  const data = await session.open({ ...headers, streamtype: "data" });
  return { data, error };
}

/** Sends, half-closes, and reads to the end. */
async function say({ data }: { data: SpdyStream }, text: string): Promise<string> {
  await data.write(Buffer.from(text));
  await data.end();
  return collected(data.chunks());
}

describe.each(["SPDY", "WebSocket"])("over %s", (transport) => {
  test("bytes go both ways, to the end of each", async () => {
    const forward = await client(transport);
    expect(await say(await connect(forward, 8001), "there and back")).toBe("there and back");
    expect(await say(await connect(forward, 8002), "x".repeat(1 << 20))).toBe("all read");
    const { data, error } = await connect(forward, 8003);
    expect(await collected(data.chunks())).toBe("only this");
    expect(await collected(error.chunks())).toBe("");
    await forward.end();
  });

  test("IPv6 is tried where IPv4 is refused", async () => {
    const forward = await client(transport);
    const { data } = await connect(forward, 8004);
    expect(await collected(data.chunks())).toBe("version six");
    await forward.end();
  });

  test("50 concurrent connections are independent", async () => {
    const forward = await client(transport);
    const texts = Array.from({ length: 50 }, (_, index) => `${index};`.repeat(2000));
    const said = await Promise.all(
      texts.map(async (text) => say(await connect(forward, 8001), text)),
    );
    expect(said).toEqual(texts);
    await forward.end();
  });

  test("a closed port is reported on the error stream, other connections continue", async () => {
    const forward = await client(transport);
    const { error } = await connect(forward, 9999);
    const told = await collected(error.chunks());
    expect(told).toContain("port 9999");
    expect(told).toContain("ECONNREFUSED");
    expect(await say(await connect(forward, 8001), "still")).toBe("still");
    await forward.end();
  });

  test("20 MB arrive, at the client's pace", async () => {
    const forward = await client(transport);
    const { data } = await connect(forward, 8005);
    let bytes = 0;
    for await (const chunk of data.chunks()) bytes += chunk.length;
    expect(bytes).toBe(20_000_000);
    await forward.end();
  });

  test("a disconnected client leaves no connection, process or descriptor", async () => {
    const before = daemon.snapshot();
    const forward = await client(transport);
    for (let count = 0; count < 12; count++) await connect(forward, 8006);
    await until("all are connected", async () => (await connections()) === 12);
    await forward.end();
    await until("none is connected", async () => (await connections()) === 0);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

test("a pod in the host's network is reached there", async () => {
  const server = createServer((socket) => socket.end("from the host"));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const host = await daemon.runPod(daemon.hostPodConfig());
  const forward = await client("SPDY", host);
  const { data } = await connect(forward, port);
  expect(await collected(data.chunks())).toBe("from the host");
  await forward.end();
  server.close();
});

test("streams that make no pair are reset", async () => {
  const forward = await client("SPDY");
  const { session } = forward;
  for (const headers of [
    { streamtype: "data", port: "0", requestid: "a" },
    { streamtype: "data", port: "x", requestid: "b" },
    { streamtype: "other", port: "80", requestid: "c" },
  ]) {
    const stream = await session.open(headers);
    expect(await collected(stream.chunks())).toBe("");
    expect(stream.gone.aborted).toBe(true);
  }
  await forward.end();
});

test("a sandbox that is not there, or not ready, and a port that is none", async () => {
  const { PortForward } = daemon.client;
  expect((await failure(PortForward({ pod_sandbox_id: "nosuch" }))).code).toBe("NOT_FOUND");
  const wrong = await failure(PortForward({ pod_sandbox_id: podId, port: [70_000] }));
  expect(wrong.code).toBe("INVALID_ARGUMENT");
  const other = await daemon.runPod(daemon.podConfig());
  await daemon.client.StopPodSandbox({ pod_sandbox_id: other });
  const stopped = await failure(PortForward({ pod_sandbox_id: other }));
  expect(stopped.code).toBe("FAILED_PRECONDITION");
});
