// Connects to numbered channels over WebSocket (channel.k8s.io and its kin), for tests.
import { randomBytes } from "node:crypto";
import { createConnection } from "node:net";
import { headText, readHead } from "../../src/sys/http_upgrade.ts";
import { WebSocketConnection } from "../../src/sys/websocket.ts";
import { wireOf } from "../../src/sys/socket_wire.ts";

/** The request line says GET unless `method` says otherwise; protocol "": none is named. */
export type Asking = { protocol: string; method?: string; headers?: [string, string][] };

/** The head of the answer, and the connection behind it. */
export async function askForWebSocket(address: string, { protocol, method, headers }: Asking) {
  const url = new URL(address);
  const socket = createConnection({ host: url.hostname, port: Number(url.port) });
  await new Promise((resolve, reject) => socket.once("connect", resolve).once("error", reject));
  socket.on("error", () => {}); // reads and writes tell
  const wire = wireOf(socket);
  const named: [string, string][] = protocol === "" ? [] : [["Sec-WebSocket-Protocol", protocol]];
  const usual: [string, string][] = [
    ["Host", url.host],
    ["Connection", "keep-alive, UPGRADE"],
    ["Upgrade", "WebSocket"],
    ["Sec-WebSocket-Version", "13"],
    ["Sec-WebSocket-Key", randomBytes(16).toString("base64")],
  ];
  const line = `${method ?? "GET"} ${url.pathname} HTTP/1.1`;
  await wire.send(headText(line, [...usual, ...named, ...(headers ?? [])]));
  return readHead(wire);
}

/** Messages as they came, the channel first; a base64 form's are decoded. */
export class ChannelsClient {
  readonly messages: { channel: number; bytes: Buffer }[] = [];
  /** Until the server has ended it. */
  readonly ended: Promise<void>;
  readonly #connection: WebSocketConnection;
  readonly #isBase64: boolean;
  readonly #close: () => void;

  private constructor(
    connection: WebSocketConnection,
    { isBase64, close }: { isBase64: boolean; close: () => void },
  ) {
    this.#connection = connection;
    this.#isBase64 = isBase64;
    this.#close = close;
    this.ended = this.#read();
    this.ended.catch(() => {});
  }

  static async open(address: string, protocol: string): Promise<ChannelsClient> {
    const { head, rest } = await askForWebSocket(address, { protocol });
    if (!head.line.includes(" 101 ")) throw new Error(head.line);
    const isBase64 = protocol.includes("base64");
    const options = { isBase64, close: () => rest.close() };
    return new ChannelsClient(new WebSocketConnection(rest, "client"), options);
  }

  async #read(): Promise<void> {
    let parts: Buffer[] = [];
    for await (const { last, bytes } of this.#connection.pieces()) {
      parts.push(bytes);
      if (!last) continue;
      const whole = Buffer.concat(parts);
      parts = [];
      const rest = whole.subarray(1);
      this.messages.push({
        channel: this.#isBase64 ? whole[0]! - 0x30 : whole[0]!,
        bytes: this.#isBase64 ? Buffer.from(rest.toString(), "base64") : rest,
      });
    }
    this.#close();
  }

  send(channel: number, bytes: Uint8Array): Promise<void> {
    if (!this.#isBase64) return this.#connection.send(Uint8Array.of(channel), bytes);
    return this.#connection.sendText(`${channel}${Buffer.from(bytes).toString("base64")}`);
  }

  /** A text message as it is. */
  sendRaw(text: string): Promise<void> {
    return this.#connection.sendText(text);
  }

  /** All that came on a channel until now. */
  bytesOf(channel: number): Buffer {
    const of = this.messages.filter((message) => message.channel === channel);
    return Buffer.concat(of.map(({ bytes }) => bytes));
  }

  /** The closing handshake, from our side. */
  close(): Promise<void> {
    return this.#connection.close(1000);
  }

  /** Without a word. */
  vanish(): void {
    this.#close();
  }
}
