// Encodes protobuf messages with valid UTF-8: protobufjs writes a lone surrogate as three bytes, on which a Go
// client rejects the whole message, even a list of all containers.
import protobuf from "protobufjs/minimal.js";

export type Encoder<Message> = {
  encode(message: Message, writer: protobuf.Writer): protobuf.Writer;
};

class TextWriter extends protobuf.BufferWriter {
  override string(text: string): this {
    super.string(text.toWellFormed());
    return this;
  }
}

/** Encodes a message. */
export function encodeMessage<Message>(type: Encoder<Message>, message: Message): Buffer {
  const { buffer, byteOffset, byteLength } = type.encode(message, new TextWriter()).finish();
  return Buffer.from(buffer, byteOffset, byteLength);
}
