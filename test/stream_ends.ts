// Opens thousands of exec, attach and port-forward sessions over SPDY and WebSocket, and ends them in every way: by the
// command, by a close, a reset and a half-close of the client, with 300 KiB under way that nobody takes, with a closed port,
// without the error stream, with the pod. Afterwards no place, no descriptor and no process may be left, and the daemon
// must end within a second. `bun test/stream_ends.ts [--count 5000] [--parallel 16]`; count: sessions of each kind.
import { createConnection, createServer, type AddressInfo, type Socket } from "node:net";
import { randomBytes } from "node:crypto";
import { parseArgs } from "node:util";
import { messageOf } from "../src/base/errors.ts";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { headText, readHead } from "../src/sys/http_upgrade.ts";
import { wireOf } from "../src/sys/socket_wire.ts";
import { SpdySession } from "../src/sys/spdy.ts";
import { WebSocketConnection } from "../src/sys/websocket.ts";
import { until } from "./expect.ts";
import { type Daemon, startDaemon } from "./harness.ts";
import { freePort } from "./registry.ts";

const kinds = ["exec", "attach", "forward"] as const;
const transports = ["SPDY", "WebSocket"] as const;
/** The client's ways to end a session. */
const ends = ["close", "reset", "half-close"] as const;
/** What happens before the end. */
const loads = ["nothing", "used", "flooded", "over", "unpaired"] as const;

type Kind = (typeof kinds)[number];
type Session = {
  kind: Kind;
  transport: (typeof transports)[number];
  end: (typeof ends)[number];
  load: (typeof loads)[number];
};

/** All that differ: only SPDY has an error stream of its own. */
export function sessionsOf(kind: Kind): Session[] {
  return transports.flatMap((transport) =>
    ends.flatMap((end) =>
      loads
        .filter((load) => load !== "unpaired" || (kind === "forward" && transport === "SPDY"))
        .map((load) => ({ kind, transport, end, load })),
    ),
  );
}

/** More than a session queues for its command. */
const tooMuch = Buffer.alloc(300 << 10, "x");
const closedPort = 1;
/** A runc that is killed leaves the file over which it mounts itself; it goes with the container. */
const ofKilledRuntime = /^(?:file|mount): .*\/runc\.\w{6}(?: \(mount \d+\))?$/;

type Stage = {
  daemon: Daemon;
  podId: string;
  /** A container that reads its input, and one that does not. */
  reader: string;
  deaf: string;
  /** Ports that send back and that take nothing. */
  echo: number;
  stuck: number;
  metricsPort: number;
};

/** Runs `count` sessions of each kind. Returns what went wrong. */
export async function streamEnds(plan: { count: number; parallel: number }): Promise<string[]> {
  const metricsPort = await freePort();
  await using daemon = await startDaemon({
    network: false,
    config: { "metrics-port": metricsPort, "log-level": "INFO" },
  });
  using servers = await startServers();
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const [reader, deaf] = await startContainers(daemon, podId, pod);
  const stage = { daemon, podId, reader, deaf, ...servers.ports, metricsPort };
  const problems: string[] = [];
  const note = (problem: string) => problems.length < 20 && problems.push(problem);
  for (const kind of kinds) await runSession(stage, { ...sessionsOf(kind)[1]!, end: "close" });
  await until("the first sessions are over", async () => (await clientsOf(stage)) === 0);
  const before = daemon.snapshot();
  for (const kind of kinds) {
    await inParallel(plan, sessionsOf(kind), async (session) => {
      const failed = await runSession(stage, session).then(() => undefined, messageOf);
      if (failed !== undefined) note(`${Object.values(session).join(" ")}: ${failed}`);
    });
  }
  const over = async (what: string) => {
    const wait = until(`no session is left ${what}`, async () => (await clientsOf(stage)) === 0);
    await wait.catch((error: unknown) => note(messageOf(error)));
  };
  await over("after its client");
  for (const leak of await daemon.leaksSince(before)) {
    if (!ofKilledRuntime.test(leak)) note(`left: ${leak}`);
  }
  await endWithPod(stage);
  await over("after its pod");
  const bytes = await bytesOf(stage);
  if (bytes !== 0) note(`${bytes} bytes are left in queues that nobody reads`);
  const endMs = await endWithSessions(stage);
  if (endMs > 1_000) note(`the daemon took ${Math.round(endMs)} ms to end`);
  return problems;
}

async function startContainers(daemon: Daemon, podId: string, pod: PodSandboxConfig) {
  const input = { stdin: true };
  const reader = await daemon.run(podId, pod, "while :; do cat; done", input);
  return [reader, await daemon.run(podId, pod, "sleep 100000", input)] as const;
}

async function startServers() {
  const sockets = new Set<Socket>();
  const open = async (onSocket: (socket: Socket) => void) => {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
      sockets.add(socket);
      socket.on("error", () => {}).once("close", () => sockets.delete(socket));
      onSocket(socket);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return server;
  };
  const [echo, stuck] = [await open((socket) => socket.pipe(socket)), await open(() => {})];
  const portOf = (server: typeof echo) => (server.address() as AddressInfo).port;
  return {
    ports: { echo: portOf(echo), stuck: portOf(stuck) },
    [Symbol.dispose]: () => {
      for (const socket of sockets) socket.destroy();
      for (const server of [echo, stuck]) server.close();
    },
  };
}

async function inParallel(
  { count, parallel }: { count: number; parallel: number },
  sessions: Session[],
  run: (session: Session) => Promise<void>,
): Promise<void> {
  let next = 0;
  const work = async () => {
    while (next < count) await run(sessions[next++ % sessions.length]!);
  };
  await Promise.all(Array.from({ length: parallel }, work));
}

async function clientsOf({ metricsPort }: Stage): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
  return Number(/queue_length\{queue="stream-clients"\} (\d+)/.exec(text)?.[1]);
}

/** Returns what the daemon's queues of bytes hold. */
async function bytesOf({ metricsPort }: Stage): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
  return Number(/queue_length\{queue="stream-bytes"\} (\d+)/.exec(text)?.[1]);
}

/** Opens a session, and ends it in its way. */
async function runSession(stage: Stage, session: Session): Promise<void> {
  const { socket, closed } = await openSession(stage, session);
  if (session.load === "over" && session.kind === "exec") await closed;
  if (session.end === "reset") socket.resetAndDestroy();
  else if (session.end === "close") socket.destroy();
  else socket.end(); // what the daemon still sends is read
  await closed;
}

/** Returns when the load is under way. */
async function openSession(stage: Stage, session: Session) {
  const url = new URL(await urlOf(stage, session));
  const socket = createConnection({
    host: url.hostname,
    port: Number(url.port),
    allowHalfOpen: true,
  });
  const closed = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  socket.on("error", () => {}).on("end", () => socket.end());
  const wire = wireOf(socket);
  await wire.send(requestOf(url, session));
  const { head, rest } = await readHead(wire);
  if (!head.line.includes(" 101 ")) throw new Error(head.line);
  const use = session.transport === "SPDY" ? useSpdy : useWebSocket;
  await use(rest, stage, session);
  return { socket, closed };
}

async function urlOf(stage: Stage, { kind, load, transport }: Session): Promise<string> {
  const { daemon, reader, deaf, podId } = stage;
  const streams = { stdin: true, stdout: true };
  const container_id = load === "flooded" ? deaf : reader;
  if (kind === "attach") return (await daemon.client.Attach({ container_id, ...streams })).url;
  if (kind === "exec") {
    const cmd = load === "over" ? ["true"] : load === "flooded" ? ["sleep", "1000"] : ["cat"];
    return (await daemon.client.Exec({ container_id, cmd, ...streams })).url;
  }
  const port = transport === "SPDY" ? [] : [portOf(stage, load)];
  return (await daemon.client.PortForward({ pod_sandbox_id: podId, port })).url;
}

function portOf({ echo, stuck }: Stage, load: Session["load"]): number {
  if (load === "over") return closedPort;
  return load === "flooded" ? stuck : echo;
}

function requestOf(url: URL, { kind, transport }: Session): Buffer {
  const headers: [string, string][] = [
    ["Host", url.host],
    ["Connection", "Upgrade"],
  ];
  if (transport === "SPDY") {
    const name = kind === "forward" ? "portforward.k8s.io" : "v4.channel.k8s.io";
    headers.push(["Upgrade", "SPDY/3.1"], ["X-Stream-Protocol-Version", name]);
    return headText(`POST ${url.pathname} HTTP/1.1`, headers);
  }
  const name = kind === "forward" ? "v4.channel.k8s.io" : "v5.channel.k8s.io";
  headers.push(["Upgrade", "websocket"], ["Sec-WebSocket-Protocol", name]);
  headers.push(["Sec-WebSocket-Version", "13"]);
  headers.push(["Sec-WebSocket-Key", randomBytes(16).toString("base64")]);
  return headText(`GET ${url.pathname} HTTP/1.1`, headers);
}

type Wire = Parameters<typeof readHead>[0];

/** Sends what the load asks for, of which some may never be taken. */
async function useSpdy(wire: Wire, stage: Stage, { kind, load }: Session): Promise<void> {
  const session = new SpdySession(wire, () => {});
  session.run().catch(() => {});
  if (load === "nothing") return;
  if (kind === "forward") {
    const headers = { port: String(portOf(stage, load)), requestid: "1" };
    if (load !== "unpaired")
      (await session.open({ ...headers, streamtype: "error" })).inbox.discard();
    const data = await session.open({ ...headers, streamtype: "data" });
    return await send((bytes) => data.write(bytes), load, data.chunks());
  }
  (await session.open({ streamtype: "error" })).inbox.discard();
  const stdin = await session.open({ streamtype: "stdin" });
  const stdout = await session.open({ streamtype: "stdout" });
  await send((bytes) => stdin.write(bytes), load, stdout.chunks());
}

async function useWebSocket(wire: Wire, _: Stage, { load }: Session): Promise<void> {
  const connection = new WebSocketConnection(wire, "client");
  const output = (async function* () {
    for await (const { bytes } of connection.pieces()) {
      if (bytes.length > 4) yield bytes; // not the first messages of the channels
    }
  })();
  await send((bytes) => connection.send(Uint8Array.of(0), bytes), load, output);
}

async function send(
  write: (bytes: Buffer) => Promise<void>,
  load: Session["load"],
  output: AsyncIterable<Buffer>,
): Promise<void> {
  const chunks = output[Symbol.asyncIterator]();
  if (load !== "nothing") write(load === "used" ? Buffer.from("hello") : tooMuch).catch(() => {});
  if (load === "used" && (await chunks.next()).done === true) throw new Error("nothing came back");
  drain(chunks).catch(() => {}); // it ends with the connection
}

async function drain(chunks: AsyncIterator<Buffer>): Promise<void> {
  while ((await chunks.next()).done !== true);
}

/** Sessions whose pod is stopped end, or do as their clients leave. */
async function endWithPod(stage: Stage): Promise<void> {
  const { daemon } = stage;
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const [reader, deaf] = await startContainers(daemon, podId, pod);
  const sessions = await openAll({ ...stage, podId, reader, deaf });
  await daemon.removePod(podId);
  for (const { socket } of sessions) socket.destroy();
}

/** Ends the daemon while sessions of all kinds are open; returns the milliseconds. */
async function endWithSessions(stage: Stage): Promise<number> {
  const sessions = await openAll(stage);
  const endMs = await stage.daemon.stop();
  for (const { socket } of sessions) socket.destroy();
  await stage.daemon.start();
  return endMs;
}

function openAll(stage: Stage) {
  const all = kinds.flatMap((kind) => sessionsOf(kind)).filter(({ end }) => end === "close");
  return Promise.all(all.map((session) => openSession(stage, session)));
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      count: { type: "string", default: "5000" },
      parallel: { type: "string", default: "16" },
    },
  });
  const plan = { count: Number(values.count), parallel: Number(values.parallel) };
  const begin = performance.now();
  const problems = await streamEnds(plan);
  const seconds = Math.round((performance.now() - begin) / 1000);
  console.log(`${plan.count} sessions of each kind in ${seconds} s: ${problems.length} problems`);
  for (const problem of problems) console.log(problem);
  process.exitCode = problems.length === 0 ? 0 : 1;
}
