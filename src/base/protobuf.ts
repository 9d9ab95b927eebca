// Writes protobuf messages whose strings are UTF-8: protobufjs writes a lone surrogate as three bytes
// that no Go client reads, which fails the whole message, be it a list of all containers.
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

/** The bytes of a message. */
export function encodeMessage<Message>(type: Encoder<Message>, message: Message): Buffer {
  const { buffer, byteOffset, byteLength } = type.encode(message, new TextWriter()).finish();
  return Buffer.from(buffer, byteOffset, byteLength);
}
