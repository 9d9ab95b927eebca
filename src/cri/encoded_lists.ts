// Builds List and Stream responses from cached encodings of their items: clients poll the lists of a node,
// which rarely change.
import protobuf from "protobufjs/minimal.js";
import { throwIfAborted } from "../base/abort.ts";
import { encodeMessage, type Encoder } from "../base/protobuf.ts";
import type { Call, Context } from "./context.ts";

/** A response that is already encoded. */
export class Encoded {
  readonly bytes: Buffer;

  constructor(parts: Uint8Array[]) {
    this.bytes = Buffer.concat(parts);
  }
}

/** Field number of the items in the response of every List and Stream call of CRI. */
export const itemsField = 1;
/** The protobuf wire type of messages. */
const lengthDelimited = 2;

/** Encodes an item with its field header. */
export function listItem<Message>(type: Encoder<Message>, message: Message): Uint8Array {
  return framed(itemsField, encoded(type, message));
}

/** Encodes a message for caching. */
export function encoded<Message>(type: Encoder<Message>, message: Message): Uint8Array {
  // A copy: the result may be a slice of a shared block, which would stay allocated as a whole.
  return new Uint8Array(encodeMessage(type, message));
}

/** Embeds an encoded message as a field of another; its parts may come in any order. */
export function framed(field: number, ...parts: Uint8Array[]): Uint8Array {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const head = protobuf.Writer.create().uint32((field << 3) | lengthDelimited);
  return new Uint8Array(Buffer.concat([head.uint32(length).finish(), ...parts]));
}

/** Encodes each record once: a changed record is a new object. */
export function recordItems<Record extends object, Message>(
  type: Encoder<Message>,
  toMessage: (record: Record) => Message,
): (record: Record) => Uint8Array {
  const items = new WeakMap<Record, Uint8Array>();
  return (record) => {
    const known = items.get(record);
    if (known !== undefined) return known;
    const item = listItem(type, toMessage(record));
    items.set(record, item);
    return item;
  };
}

type Items<Request> = (
  context: Context,
  request: Request,
  call: Call,
) => Uint8Array[] | Promise<Uint8Array[]>;
type Send = (batch: Encoded) => Promise<void>;

/** Makes two RPC handlers: the List call returns all items, the Stream call sends them in batches. */
export function listCalls<Request>(items: Items<Request>) {
  return {
    list: async (context: Context, request: Request, call: Call) =>
      new Encoded(await items(context, request, call)),
    stream: async (context: Context, request: Request, call: Call, send: Send) =>
      sendItems(await items(context, request, call), call, send),
  };
}

/** Well below the 16 MiB that clients accept, and large compared to the overhead of a message. */
const batchBytesMax = 1 << 20;

/** Sends all items in batches; no message at all for an empty list (KEP-5825). */
export async function sendItems(items: Uint8Array[], call: Call, send: Send): Promise<void> {
  for (let begin = 0; begin < items.length;) {
    throwIfAborted("sending a list", call.signal);
    let end = begin + 1;
    let bytes = items[begin]!.length;
    while (end < items.length && bytes + items[end]!.length <= batchBytesMax) {
      bytes += items[end++]!.length;
    }
    await send(new Encoded(items.slice(begin, end)));
    begin = end;
  }
}
