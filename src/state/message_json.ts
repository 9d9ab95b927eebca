// CRI messages as JSON, for records and for what a status tells.
type MessageType<Message> = {
  fromObject(json: object): Message;
  toObject(message: Message, options: object): object;
};

/** By field names; 64-bit numbers and bytes (base64) as text, enums as numbers or by their names. */
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
