// Reads YAML or JSON files (*.json must be JSON) and validates them against a schema.
import * as v from "valibot";
import { parse } from "yaml";
import { jsonValue } from "../base/json.ts";
import { wellFormed } from "../base/text.ts";
import { readTextBounded } from "../sys/file.ts";

/** @throws Error with the key and the reason, without the file name. */
export function readYamlFile<Schema extends v.GenericSchema>(
  file: string,
  bytesMax: number,
  schema: Schema,
): v.InferOutput<Schema> {
  const text = readTextBounded(file, bytesMax, { fatal: true });
  const data: unknown = file.endsWith(".json") ? jsonValue(text) : wellFormed(parse(text));
  const parsed = v.safeParse(schema, data);
  if (parsed.success) return parsed.output;
  const [issue] = parsed.issues;
  throw new Error(`${v.getDotPath(issue) ?? "it"}: ${issue.message}`);
}
