// Converts CRI messages to JSON, for records and for the verbose info of a status.
type MessageType<Message> = {
  fromObject(json: object): Message;
  toObject(message: Message, options: object): object;
};

/** Returns JSON with proto field names: 64-bit numbers and bytes (base64) are text, enums numbers or names. */
export function messageJson<Message>(
  type: MessageType<Message>,
  message: object,
  enums: "numbers" | "names",
): object {
  const form = { longs: String, bytes: String };
  return type.toObject(
    type.fromObject(message),
    enums === "names" ? { ...form, enums: String } : form,
  );
}
