// Sends floods to a daemon for some seconds, as a process of its own: `bun neighbours_flood.ts KIND SOCKET TARGET PORT
// SECONDS`. TARGET: the id of the bad neighbour's container, or pod for a port-forward; PORT: where an HTTP head goes.
// Each connection that the daemon closes is followed by another. Prints how many bytes were sent.
import { once } from "node:events";
import { createConnection, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { constants, createDeflate } from "node:zlib";
import { toLong } from "../src/base/int64.ts";
import { connect } from "../src/cli/client.ts";
import { headText } from "../src/sys/http_upgrade.ts";
import { controlFrame, dataHead, HEADERS } from "../src/sys/spdy_frames.ts";
import { spdyDictionary } from "../src/sys/spdy_headers.ts";

const [kind = "", socketPath, target = "", port, seconds] = process.argv.slice(2);
const client = connect(`unix://${socketPath}`);
const until = performance.now() + Number(seconds) * 1000;
const isOver = () => performance.now() > until;
let sent = 0;

/** Repeats a short piece to about 64 KiB. */
function repeated(piece: Buffer): Buffer {
  return Buffer.concat(Array.from({ length: Math.ceil(65_536 / piece.length) }, () => piece));
}

const upgrades: Record<string, [string, string][]> = {
  spdy: [
    ["Connection", "Upgrade"],
    ["Upgrade", "SPDY/3.1"],
  ],
  websocket: [
    ["Connection", "Upgrade"],
    ["Upgrade", "websocket"],
    ["Sec-WebSocket-Version", "13"],
    ["Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="],
    ["Sec-WebSocket-Protocol", "v5.channel.k8s.io"],
  ],
};

/** Connects to a stream's URL; undefined: it was refused. */
async function openStream(url: string, over: "spdy" | "websocket"): Promise<Socket | undefined> {
  const { hostname, port: at, pathname, host } = new URL(url);
  const socket = createConnection({ host: hostname, port: Number(at) });
  socket.on("error", () => {});
  await Promise.race([once(socket, "connect"), once(socket, "close")]);
  const headers: [string, string][] = [["Host", host], ...upgrades[over]!];
  socket.write(headText(`GET ${pathname} HTTP/1.1`, headers));
  const [answer] = (await Promise.race([once(socket, "data"), once(socket, "close")])) as [unknown];
  if (answer instanceof Buffer && answer.toString("latin1").startsWith("HTTP/1.1 101 "))
    return socket;
  socket.destroy();
  return undefined;
}

async function execUrl(tty: boolean): Promise<string> {
  const cmd = ["sleep", "1000"];
  const asked = { stdin: true, stdout: true, stderr: false, tty };
  return (await client.Exec({ container_id: target, cmd, ...asked })).url;
}

async function forwardUrl(): Promise<string> {
  return (await client.PortForward({ pod_sandbox_id: target, port: [1] })).url;
}

/** Writes the pieces in turn, again and again, as fast as they are taken. */
async function pour(socket: Socket, pieces: Buffer[]): Promise<void> {
  socket.resume();
  const closed = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  for (let index = 0; !isOver() && !socket.destroyed; index++) {
    const piece = pieces[index % pieces.length]!;
    sent += piece.length;
    if (socket.write(piece)) {
      if (index % 64 === 0) await sleep(0);
      continue;
    }
    const drained = new Promise<void>((resolve) => socket.once("drain", resolve));
    await Promise.race([drained, closed, sleep(Math.max(1, until - performance.now()))]);
  }
}

type Flood = { url: () => Promise<string>; over: "spdy" | "websocket"; pieces: Buffer[] };

/** A masked frame of the client with the key 0. */
function webSocketFrame(opcode: number, payload: Buffer): Buffer {
  const length = payload.length < 126 ? Buffer.from([payload.length | 0x80]) : Buffer.alloc(3);
  if (payload.length >= 126) {
    length[0] = 126 | 0x80;
    length.writeUInt16BE(payload.length, 1);
  }
  return Buffer.concat([Buffer.from([0x80 | opcode]), length, Buffer.alloc(4), payload]);
}

/** Blocks of 8,190 empty headers each, which take 100 bytes of the wire. */
async function headerBlocks(count: number): Promise<Buffer[]> {
  const plain = Buffer.alloc(4 + 8 * 8_190);
  plain.writeUInt32BE(8_190);
  const deflate = createDeflate({ dictionary: spdyDictionary() });
  const blocks: Buffer[] = [];
  for (let index = 0; index < count; index++) {
    deflate.write(plain);
    await new Promise<void>((resolve) => deflate.flush(constants.Z_SYNC_FLUSH, resolve));
    const chunks: Buffer[] = [];
    for (let chunk = deflate.read(); chunk !== null; chunk = deflate.read())
      chunks.push(chunk as Buffer);
    blocks.push(controlFrame(HEADERS, [1], Buffer.concat(chunks)));
  }
  return blocks;
}

async function floodOf(name: string): Promise<Flood | undefined> {
  const exec = (tty: boolean) => ({ url: () => execUrl(tty), over: "websocket" as const });
  switch (name) {
    case "spdy-frames":
      return { url: forwardUrl, over: "spdy", pieces: [repeated(dataHead(99, 0, false))] };
    case "ws-pongs":
      return { ...exec(false), pieces: [repeated(webSocketFrame(10, Buffer.alloc(0)))] };
    case "ws-pings":
      return { ...exec(false), pieces: [repeated(webSocketFrame(9, Buffer.alloc(0)))] };
    case "ws-empty-stdin":
      return { ...exec(false), pieces: [repeated(webSocketFrame(2, Buffer.from([0])))] };
    case "resize-braces": {
      const text = Buffer.from(`\x04${"}".repeat(60_000)}`);
      return { ...exec(true), pieces: [webSocketFrame(2, text)] };
    }
    case "resize-sizes": {
      const size = webSocketFrame(2, Buffer.from('\x04{"Width":80,"Height":24}'));
      return { ...exec(true), pieces: [repeated(size)] };
    }
    case "spdy-headers":
      return { url: forwardUrl, over: "spdy", pieces: await headerBlocks(2_000) };
  }
  return undefined;
}

async function flood({ url, over, pieces }: Flood): Promise<void> {
  while (!isOver()) {
    const socket = await openStream(await url(), over);
    if (socket === undefined) await sleep(50);
    else await pour(socket, over === "spdy" && pieces.length > 1 ? pieces : [pieces[0]!]);
    socket?.destroy();
  }
}

/** A head whose header has the blanks of the quadratic pattern. */
async function sendHeads(): Promise<void> {
  const head = `GET / HTTP/1.1\r\nX: a: b${" ".repeat(16_200)}b\r\n\r\n`;
  while (!isOver()) {
    const socket = createConnection({ host: "127.0.0.1", port: Number(port) });
    socket.on("error", () => {}).resume();
    socket.end(head);
    sent += head.length;
    await Promise.race([once(socket, "close"), sleep(2_000)]);
    socket.destroy();
  }
}

/** Commands with so much output that an answer has room for. */
async function execLoudly(): Promise<void> {
  const cmd = ["sh", "-c", "head -c 16500000 /dev/zero"];
  while (!isOver()) {
    const request = { container_id: target, cmd, timeout: toLong(60) };
    const answer = await client.ExecSync(request).catch(() => undefined);
    sent += answer?.stdout.length ?? 0;
    if (answer === undefined) await sleep(10);
  }
}

/** Streams whose output is read as fast as it comes, or never. */
async function readOutput(isRead: boolean): Promise<void> {
  while (!isOver()) {
    const asked = { stdin: false, stdout: true, stderr: false, tty: false };
    const { url } = await client.Exec({
      container_id: target,
      cmd: ["yes", "x".repeat(200)],
      ...asked,
    });
    const socket = await openStream(url, "websocket");
    if (socket === undefined) continue;
    socket.on("data", (chunk: Buffer) => (sent += chunk.length));
    if (!isRead) socket.pause();
    await sleep(Math.max(0, until - performance.now()));
    socket.destroy();
  }
}

async function times(count: number, act: () => Promise<void>): Promise<void> {
  await Promise.all(Array.from({ length: count }, act));
}

const flooding = await floodOf(kind);
if (flooding !== undefined) await flood(flooding);
else if (kind === "http-heads") await times(8, sendHeads);
else if (kind === "big-execs") await times(20, execLoudly);
else if (kind === "big-outputs") await times(4, () => readOutput(true));
else if (kind === "unread-outputs") await times(20, () => readOutput(false));
else throw new Error(`no flood is named ${kind}`);
process.stdout.write(`${sent}\n`);
process.exit();
