// Numbered channels in WebSocket messages, as k8s.io/streaming/pkg/httpstream/wsstream has them. In the
// raw form a binary message begins with the channel as a byte; in the base64 form a text message begins
// with the channel as a digit, and base64 follows. A client may send either kind of message in both forms.
import { closeInvalidData, ProtocolError, type WebSocketConnection } from "../sys/websocket.ts";

/** A piece of a channel's bytes, which may be empty. */
export type ChannelPiece = { channel: number; bytes: Buffer };

const digitZero = 0x30;

export class ChannelMessages {
  readonly #connection: WebSocketConnection;
  readonly #isBase64: boolean;

  /** protocol: as agreed on; "" where the client has named none. */
  constructor(connection: WebSocketConnection, protocol: string) {
    this.#connection = connection;
    this.#isBase64 = protocol.endsWith("base64.channel.k8s.io");
  }

  /** One message. @throws when the client has gone. */
  send(channel: number, bytes: Uint8Array): Promise<void> {
    if (!this.#isBase64) return this.#connection.send(Uint8Array.of(channel), bytes);
    const { buffer, byteOffset, length } = bytes;
    return this.#connection.sendText(
      `${channel}${Buffer.from(buffer, byteOffset, length).toString("base64")}`,
    );
  }

  /**
   * What the client sends, to its end. Base64 that cannot be decoded ends the connection with 1007:
   * wsstream drops such a message, and the command would miss bytes without a word.
   * @throws for what is no WebSocket.
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

  /** Ends the connection: nothing more is sent. */
  async close(code: number): Promise<void> {
    await this.#connection.close(code);
  }
}

/** Decodes one message of RFC 4648, section 4, cut anywhere; line ends are skipped, as Go does. */
export class Base64Decoder {
  /** Up to three characters that wait for the rest of their group. */
  #kept = "";
  #padded = false;

  /** @throws ProtocolError for what is no base64. */
  push(bytes: Buffer): Buffer {
    const text = this.#kept + bytes.toString("latin1").replaceAll(/[\r\n]/g, "");
    const whole = text.slice(0, text.length - (text.length % 4));
    this.#kept = text.slice(whole.length);
    if (whole === "" && this.#kept === "") return Buffer.alloc(0);
    const isWrong = this.#padded || !/^[A-Za-z0-9+/]*={0,2}$/.test(whole);
    if (isWrong || !/^[A-Za-z0-9+/]*=?$/.test(this.#kept)) throw invalidBase64();
    this.#padded = whole.endsWith("=");
    if (this.#padded && this.#kept !== "") throw invalidBase64();
    return Buffer.from(whole, "base64");
  }

  /** The message is complete. @throws ProtocolError when its last group is not. */
  end(): void {
    if (this.#kept !== "") throw invalidBase64();
  }
}

function invalidBase64(): ProtocolError {
  return new ProtocolError(closeInvalidData, "WebSocket: a message that is no base64");
}
