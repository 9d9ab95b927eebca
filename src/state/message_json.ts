// Converts CRI messages to JSON, for records and for the verbose info of a status.
import Long from "long";

type MessageType<Message> = {
  fromObject(json: object): Message;
  toObject(message: Message, options: object): object;
};

/** Returns JSON for a record: proto field names, enums as numbers; 64-bit numbers and bytes (base64) are text. */
export function messageJson<Message>(type: MessageType<Message>, message: object): object {
  return type.toObject(type.fromObject(message), { longs: String, bytes: String });
}

/**
 * Returns what Go's encoding/json makes of the message, as in containerd's verbose info: proto field names, enums as
 * numbers, 64-bit numbers as bigint (base/json.ts writes their digits), bytes as base64.
 */
export function goJson<Message>(type: MessageType<Message>, message: object): object {
  return withBigints(type.toObject(type.fromObject(message), { bytes: String })) as object;
}

function withBigints(value: unknown): unknown {
  if (Long.isLong(value)) return value.toBigInt();
  if (Array.isArray(value)) return value.map(withBigints);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([key, member]) => [key, withBigints(member)]);
  return Object.fromEntries(entries) as object;
}
