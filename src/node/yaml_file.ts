// Reads YAML or JSON files (*.json must be JSON) and validates them against a schema.
import * as v from "valibot";
import { parse, type ScalarTag, type Tags } from "yaml";
import { jsonValue } from "../base/json.ts";
import { wellFormed } from "../base/text.ts";
import { check } from "../base/schema.ts";
import { readTextBounded } from "../sys/file.ts";

/** YAML 1.1's octal numbers, as in `fileMode: 0660`: the Go libraries for which these files are written accept them. */
const octal: ScalarTag = {
  tag: "tag:yaml.org,2002:int",
  default: true,
  test: /^[-+]?0[0-7]+$/,
  resolve: (text) => parseInt(text, 8),
};

/** @throws Error with the key and the reason, without the file name. */
export function readYamlFile<Schema extends v.GenericSchema>(
  file: string,
  bytesMax: number,
  schema: Schema,
): v.InferOutput<Schema> {
  const text = readTextBounded(file, bytesMax, { fatal: true });
  const customTags = (tags: Tags): Tags => [octal, ...tags];
  const data: unknown = file.endsWith(".json")
    ? jsonValue(text)
    : wellFormed(parse(text, { customTags }));
  const parsed = check(schema, data);
  if (parsed.success) return parsed.output;
  const [issue] = parsed.issues;
  throw new Error(`${v.getDotPath(issue) ?? "it"}: ${issue.message}`);
}
