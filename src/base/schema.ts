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
