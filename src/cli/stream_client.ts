// Client of Exec, Attach and PortForward: connects to the URL from the daemon's answer.
import { randomBytes } from "node:crypto";
import { createConnection } from "node:net";
import { connect as connectTls } from "node:tls";
import { URL } from "node:url";
import { CriError, messageOf } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import type { Wire } from "../sys/byte_stream.ts";
import { headText, readHead } from "../sys/http_upgrade.ts";
import { wireOf } from "../sys/socket_wire.ts";
import { channel } from "../sys/remote_command.ts";
import { SpdySession } from "../sys/spdy.ts";
import { acceptKey, closeNormal, WebSocketConnection } from "../sys/websocket.ts";

async function connectTo(url: URL): Promise<Wire> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  // Half-close: when the daemon ends its output, pending writes must not fail, which would discard unread
  // data.
  const options = { host: url.hostname, port: Number(url.port), allowHalfOpen: true };
  // No certificate check: the URL and its token come from the daemon over root's socket.
  const socket =
    url.protocol === "https:"
      ? connectTls({ ...options, rejectUnauthorized: false }, resolve)
      : createConnection(options, resolve);
  socket.setNoDelay(true);
  socket.once("error", reject);
  try {
    await promise;
  } catch (cause) {
    const message = `cannot connect to the daemon's stream server at ${url.host} (${messageOf(cause)}): run the command on the node, in the daemon's network namespace`;
    throw new CriError("UNAVAILABLE", message, { cause });
  }
  socket.on("error", () => {}); // reads and writes report it
  return wireOf(socket);
}

async function upgrade(method: "GET" | "POST", url: URL, headers: [string, string][]) {
  const wire = await connectTo(url);
  const all: [string, string][] = [["Host", url.host], ["Connection", "Upgrade"], ...headers];
  await wire.send(headText(`${method} ${url.pathname} HTTP/1.1`, all));
  const { head, rest } = await readHead(wire);
  if (head.line.startsWith("HTTP/1.1 101 ")) return { head, wire: rest };
  wire.close();
  throw new CriError("UNAVAILABLE", `${url.host} answered ${head.line}`);
}

export async function openWebSocket(address: string, protocol: string): Promise<Wire> {
  const key = randomBytes(16).toString("base64");
  const { head, wire } = await upgrade("GET", new URL(address), [
    ["Upgrade", "websocket"],
    ["Sec-WebSocket-Version", "13"],
    ["Sec-WebSocket-Key", key],
    ["Sec-WebSocket-Protocol", protocol],
  ]);
  if (head.headers.get("sec-websocket-accept")?.[0] === acceptKey(key)) return wire;
  wire.close();
  throw new CriError("UNAVAILABLE", "invalid Sec-WebSocket-Accept in the answer to the upgrade");
}

/** Opens a session for client-side streams; streams of the peer are reset. */
export async function openSpdy(address: string, protocol: string): Promise<SpdySession> {
  const { wire } = await upgrade("POST", new URL(address), [
    ["Upgrade", "SPDY/3.1"],
    ["X-Stream-Protocol-Version", protocol],
  ]);
  return new SpdySession(wire, (stream) => {
    stream.reset().catch(() => {});
  });
}

/** Local ends of a remote command's streams. */
export type Local = {
  stdin?: AsyncIterable<Buffer>;
  sizes?: AsyncIterable<{ columns: number; rows: number }>;
  /** Resolves when the bytes are written. */
  write(stream: "stdout" | "stderr", bytes: Buffer): Promise<void>;
};

type Status = { status?: string; message?: string; details?: { causes?: Cause[] } };
type Cause = { reason?: string; message?: string };

/** Runs the command to its end. @returns its exit code. @throws CriError if it did not run */
export async function runRemote(address: string, local: Local): Promise<number> {
  const wire = await openWebSocket(address, "v5.channel.k8s.io");
  const connection = new WebSocketConnection(wire, "client");
  const lost = () => {}; // receive() reports it
  sendInput(connection, local.stdin).catch(lost);
  sendSizes(connection, local.sizes).catch(lost);
  try {
    return exitCodeOf(await receive(connection, local));
  } finally {
    await connection.close(closeNormal).catch(lost);
    wire.close();
  }
}

async function sendInput(connection: WebSocketConnection, stdin: Local["stdin"]): Promise<void> {
  if (stdin === undefined) return;
  for await (const chunk of stdin) await connection.send(Buffer.from([channel.stdin]), chunk);
  await connection.send(Buffer.from([channel.close, channel.stdin]));
}

async function sendSizes(connection: WebSocketConnection, sizes: Local["sizes"]): Promise<void> {
  if (sizes === undefined) return;
  for await (const { columns: Width, rows: Height } of sizes) {
    const size = Buffer.from(jsonText({ Width, Height }));
    await connection.send(Buffer.from([channel.resize]), size);
  }
}

/** Writes the command's output; returns the content of the error channel. */
async function receive(connection: WebSocketConnection, local: Local): Promise<string> {
  const status: Buffer[] = [];
  let number: number | undefined;
  for await (const { first, bytes } of connection.pieces()) {
    if (first) number = undefined;
    const data = number === undefined ? bytes.subarray(1) : bytes;
    number ??= bytes[0];
    if (data.length === 0) continue;
    if (number === channel.stdout) await local.write("stdout", data);
    else if (number === channel.stderr) await local.write("stderr", data);
    else if (number === channel.error) status.push(data);
  }
  return Buffer.concat(status).toString();
}

function exitCodeOf(answer: string): number {
  if (answer === "") throw new CriError("UNAVAILABLE", "the connection to the daemon was lost");
  const { status, message, details } = trustedJsonValue(answer) as Status;
  if (status === "Success") return 0;
  const cause = details?.causes?.find(({ reason }) => reason === "ExitCode");
  if (cause !== undefined) return Number(cause.message);
  // The message is the cause, after Kubernetes' "Internal error occurred: ".
  const text = details?.causes?.[0]?.message ?? message ?? "the command failed without a message";
  throw new CriError("UNKNOWN", text);
}
