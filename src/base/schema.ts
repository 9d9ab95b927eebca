// Validates untrusted values with valibot schemas up to the first issue; failures are CRI errors. No other file of src
// calls the parsers of valibot (test/tidy.test.ts).
import * as v from "valibot";
import { CriError } from "./errors.ts";
import { longJsonValue, type Reviver } from "./json.ts";
import { BoundsError, documentBounds } from "./json_bounds.ts";
import { Slices } from "./time_slices.ts";

/**
 * Parses a document from outside; gives way to other calls. what: names the document in the error.
 * @throws CriError INVALID_ARGUMENT.
 */
export async function parseDocument(
  bytes: Uint8Array,
  what: string,
  revive?: Reviver,
): Promise<unknown> {
  const slices = new Slices();
  try {
    const value = await longJsonValue(bytes, documentBounds, revive);
    await slices.pause();
    return value;
  } catch (error) {
    const problem = error instanceof BoundsError ? error.message : "is not JSON";
    throw new CriError("INVALID_ARGUMENT", `${what} ${problem}`, { cause: error });
  }
}

type Output<Schema extends v.GenericSchema> = v.InferOutput<Schema>;

/** What every check has in common. Collecting the issues of a hostile value would take seconds, and gigabytes. */
const firstIssue = { abortEarly: true } as const;

/** Checks a value; a failure has one issue, the first. */
export function check<Schema extends v.GenericSchema>(
  schema: Schema,
  value: unknown,
): v.SafeParseResult<Schema> {
  return v.safeParse(schema, value, firstIssue);
}

/** @throws Error with the first issue, for callers that name the value. */
export function checked<Schema extends v.GenericSchema>(
  schema: Schema,
  value: unknown,
): Output<Schema> {
  return v.parse(schema, value, firstIssue);
}

/** what: names the value in the error. @throws CriError INVALID_ARGUMENT. */
export function parseAs<Schema extends v.GenericSchema>(
  schema: Schema,
  value: unknown,
  what: string,
): Output<Schema> {
  const result = check(schema, value);
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
