// Validates untrusted JSON and values with valibot schemas; failures are CRI errors.
import * as v from "valibot";
import { CriError } from "./errors.ts";
import { jsonValue } from "./json.ts";

/** what: names the bytes in the error. @throws CriError INVALID_ARGUMENT. */
export function parseJson(bytes: Uint8Array, what: string): unknown {
  try {
    return jsonValue(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new CriError("INVALID_ARGUMENT", `${what} is not JSON`, { cause: error });
  }
}

/** what: names the value in the error. @throws CriError INVALID_ARGUMENT. */
export function parseAs<Schema extends v.GenericSchema>(
  schema: Schema,
  value: unknown,
  what: string,
): v.InferOutput<Schema> {
  const result = v.safeParse(schema, value);
  if (result.success) return result.output;
  const [issue] = result.issues;
  const where = v.getDotPath(issue) ?? "";
  throw new CriError("INVALID_ARGUMENT", `${what} is not valid: ${where} ${issue.message}`.trim());
}

const noObject = "Invalid type: Expected Object but received Array";

/** An object of JSON; valibot's own takes a list for one without any of its entries. */
export function objectOf<Entries extends v.ObjectEntries>(entries: Entries) {
  return v.pipe(v.unknown(), v.check(isNoList, noObject), v.object(entries));
}

/** A map of JSON; valibot's record takes a list for a map of "0", "1" and so on. */
export function mapOf<
  Key extends v.GenericSchema<string, string>,
  const Value extends v.GenericSchema,
>(key: Key, value: Value, message?: string) {
  const record = v.record(key, value, message);
  return v.pipe(v.unknown(), v.check(isNoList, message ?? noObject), record);
}

function isNoList(value: unknown): boolean {
  return !Array.isArray(value);
}
