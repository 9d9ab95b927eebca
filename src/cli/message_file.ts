// Reads a CRI message (a pod's or container's configuration) from a JSON or YAML file, with the names of the
// .proto file, as crictl does. Unknown fields and values are refused.
import { readFile } from "node:fs/promises";
import { CriError, messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { clip, printable, quoted, wellFormed } from "../base/text.ts";

/** A class that protobufjs generates. */
type MessageClass<Message> = {
  fromObject(object: Record<string, unknown>): Message;
  toObject(message: Message, options: object): Record<string, unknown>;
};

const fileBytesMax = 4 << 20;
const shownBytesMax = 80;

/** file: a path, or "-" for standard input. @throws CriError INVALID_ARGUMENT with file and field */
export async function readMessage<Message>(
  file: string,
  type: MessageClass<Message>,
): Promise<Message> {
  const bytes = await readFile(file === "-" ? "/dev/stdin" : file);
  if (bytes.length > fileBytesMax) throw invalid(file, "is larger than 4 MiB");
  const { parse } = await import("yaml"); // JSON is YAML, too
  let data: unknown;
  try {
    data = wellFormed(parse(bytes.toString("utf8")));
  } catch (error) {
    throw invalid(file, `is neither JSON nor YAML: ${printable(messageOf(error))}`);
  }
  return messageFrom(data, type, file);
}

/** @throws CriError INVALID_ARGUMENT with file and field */
export function messageFrom<Message>(
  data: unknown,
  type: MessageClass<Message>,
  file: string,
): Message {
  if (!isMap(data)) throw invalid(file, "must be a map of fields");
  const encoded = withEncodedValues(data, file);
  let message: Message;
  try {
    message = type.fromObject(encoded);
  } catch (error) {
    throw invalid(file, printable(messageOf(error)));
  }
  // fromObject drops unknown fields and values: what was kept is in the message again.
  const form = { longs: String, enums: String, bytes: String, defaults: true };
  const problem = difference(encoded, type.toObject(message, form), "");
  if (problem !== undefined) throw invalid(file, problem);
  return message;
}

/**
 * Environment values, the only bytes of these messages, are text in crictl's files. Returns them in base64, which
 * fromObject decodes.
 */
function withEncodedValues(data: Record<string, unknown>, file: string): Record<string, unknown> {
  const { envs } = data;
  if (!Array.isArray(envs)) return data;
  const encoded = envs.map((env: unknown, index) => {
    if (!isMap(env) || env["value"] === undefined || env["value"] === null) return env;
    const { value } = env;
    if (typeof value === "string") return { ...env, value: Buffer.from(value).toString("base64") };
    const shown = clip(jsonText(value), shownBytesMax);
    throw invalid(file, `envs[${index}].value: ${shown} is not text; put it in quotes`);
  });
  return { ...data, envs: encoded };
}

function difference(given: unknown, taken: unknown, path: string): string | undefined {
  if (given === null) return undefined;
  if (isMap(given) && isMap(taken)) {
    for (const [key, value] of Object.entries(given)) {
      const at = path === "" ? key : `${path}.${key}`;
      if (!Object.hasOwn(taken, key)) return `has no field ${quoted(at)}`;
      const found = difference(value, taken[key], at);
      if (found !== undefined) return found;
    }
    return undefined;
  }
  if (Array.isArray(given) && Array.isArray(taken)) {
    for (const [index, value] of given.entries()) {
      const found = difference(value, taken[index], `${path}[${index}]`);
      if (found !== undefined) return found;
    }
    return undefined;
  }
  // A number may be an enum's, or a 64-bit one, which is shown as text.
  const isSame = given === taken || (typeof given === "number" && typeof taken === "string");
  return isSame
    ? undefined
    : `${path}: ${clip(jsonText(given), shownBytesMax)} is no value of this field`;
}

function isMap(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function invalid(file: string, why: string): CriError {
  return new CriError("INVALID_ARGUMENT", `${file} ${why}`);
}
