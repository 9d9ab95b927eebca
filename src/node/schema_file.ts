// Files in forms that others have given them, in YAML or JSON (which *.json has to be).
import * as v from "valibot";
import { parse } from "yaml";
import { jsonValue } from "../base/json.ts";
import { wellFormed } from "../base/text.ts";
import { readTextBounded } from "../sys/file.ts";

/** What the file holds, by its schema. @throws Error with what is wrong with it, but not the file's name. */
export function readBySchema<Schema extends v.GenericSchema>(
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
