// Multiplexes numbered channels over WebSocket messages like k8s.io/streaming/pkg/httpstream/wsstream. In the
// raw form a binary message starts with the channel as a byte; in the base64 form a text message starts with
// the channel as a digit, followed by base64. Clients may send text and binary messages in both forms.
import { closeInvalidData, ProtocolError, type WebSocketConnection } from "../sys/websocket.ts";

/** Consecutive bytes of a channel; may be empty. */
export type ChannelPiece = { channel: number; bytes: Buffer };

const digitZero = 0x30;

export class ChannelMessages {
  readonly #connection: WebSocketConnection;
  readonly #isBase64: boolean;

  /** protocol: as negotiated; "" if the client named none. */
  constructor(connection: WebSocketConnection, protocol: string) {
    this.#connection = connection;
    this.#isBase64 = protocol.endsWith("base64.channel.k8s.io");
  }

  /** Sends one message. @throws if the client has disconnected. */
  send(channel: number, bytes: Uint8Array): Promise<void> {
    if (!this.#isBase64) return this.#connection.send(Uint8Array.of(channel), bytes);
    const { buffer, byteOffset, length } = bytes;
    return this.#connection.sendText(
      `${channel}${Buffer.from(buffer, byteOffset, length).toString("base64")}`,
    );
  }

  /**
   * Yields what the client sends, to its end. Invalid base64 closes the connection with 1007: wsstream drops
   * such a message, so that the command misses bytes silently.
   * @throws ProtocolError for invalid frames.
   */
  async *pieces(): AsyncGenerator<ChannelPiece> {
    let channel: number | undefined;
    let decoder = new Base64Decoder();
    try {
      for await (const { first, last, bytes } of this.#connection.pieces()) {
        if (first) [channel, decoder] = [undefined, new Base64Decoder()];
        if (bytes.length > 0) {
          const data = channel === undefined ? bytes.subarray(1) : bytes;
          channel ??= this.#isBase64 ? bytes[0]! - digitZero : bytes[0]!;
          yield { channel, bytes: this.#isBase64 ? decoder.push(data) : data };
        }
        if (last) decoder.end();
      }
    } catch (error) {
      if (error instanceof ProtocolError) {
        await this.#connection.close(error.code).catch(() => {});
      }
      throw error;
    }
  }

  /** Sends the close frame; nothing may be sent after it. */
  async close(code: number): Promise<void> {
    await this.#connection.close(code);
  }
}

/** Decodes the base64 (RFC 4648, section 4) of one message in chunks; skips line breaks, as Go does. */
export class Base64Decoder {
  /** Up to three characters of an incomplete group. */
  #pending = "";
  #padded = false;

  /** @throws ProtocolError for invalid base64. */
  push(bytes: Buffer): Buffer {
    const text = this.#pending + bytes.toString("latin1").replaceAll(/[\r\n]/g, "");
    const whole = text.slice(0, text.length - (text.length % 4));
    this.#pending = text.slice(whole.length);
    if (whole === "" && this.#pending === "") return Buffer.alloc(0);
    const isWrong = this.#padded || !/^[A-Za-z0-9+/]*={0,2}$/.test(whole);
    if (isWrong || !/^[A-Za-z0-9+/]*=?$/.test(this.#pending)) throw invalidBase64();
    this.#padded = whole.endsWith("=");
    if (this.#padded && this.#pending !== "") throw invalidBase64();
    return Buffer.from(whole, "base64");
  }

  /** Ends the message. @throws ProtocolError if its last group is incomplete. */
  end(): void {
    if (this.#pending !== "") throw invalidBase64();
  }
}

function invalidBase64(): ProtocolError {
  return new ProtocolError(closeInvalidData, "WebSocket: a message is not valid base64");
}
