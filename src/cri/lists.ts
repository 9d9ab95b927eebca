// List and Stream answers, put together from the encoded bytes of their items: a node's lists are asked
// for all the time and hardly ever change.
import protobuf from "protobufjs/minimal.js";
import { throwIfAborted } from "../base/abort.ts";
import { encodeMessage, type Encoder } from "../base/protobuf.ts";
import type { Call } from "./context.ts";

/** A response that is bytes already; the server sends them as they are. */
export class Encoded {
  readonly bytes: Buffer;

  constructor(parts: Uint8Array[]) {
    this.bytes = Buffer.concat(parts);
  }
}

/** A list's items are this field of its response, in every List and Stream call of CRI. */
export const itemsField = 1;
/** Of protobuf's wire types the one of messages. */
const lengthDelimited = 2;

/** One item, with what stands before it in its list. */
export function listItem<Message>(type: Encoder<Message>, message: Message): Uint8Array {
  return framed(itemsField, encoded(type, message));
}

/** A message's bytes, to be kept. */
export function encoded<Message>(type: Encoder<Message>, message: Message): Uint8Array {
  // A copy: the result may be a slice of a shared block, which it would keep whole.
  return new Uint8Array(encodeMessage(type, message));
}

/** An encoded message as a field of another; parts of one message may stand in any order. */
export function framed(field: number, ...parts: Uint8Array[]): Uint8Array {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const head = protobuf.Writer.create().uint32((field << 3) | lengthDelimited);
  return new Uint8Array(Buffer.concat([head.uint32(length).finish(), ...parts]));
}

/** The items of records, each encoded once: a record that changes is another object. */
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

/** Small beside the 16 MiB that a client takes, and large beside what a message costs. */
const batchBytesMax = 1 << 20;

/** Sends all items, some in each message; none at all when there are none (KEP-5825). */
export async function sendItems(
  items: Uint8Array[],
  call: Call,
  send: (batch: Encoded) => Promise<void>,
): Promise<void> {
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
