// Reads YAML or JSON files (*.json must be JSON), bounds them, and validates them against a schema.
import * as v from "valibot";
import { isScalar, parseDocument, type ScalarTag, type Tags, visit } from "yaml";
import { jsonValue } from "../base/json.ts";
import { BoundsError } from "../base/json_bounds.ts";
import { check } from "../base/schema.ts";
import { wellFormed } from "../base/text.ts";
import { readTextBounded } from "../sys/file.ts";

/** YAML 1.1's octal numbers, as in `fileMode: 0660`: the Go libraries for which these files are written accept them. */
const octal: ScalarTag = {
  tag: "tag:yaml.org,2002:int",
  default: true,
  test: /^[-+]?0[0-7]+$/,
  resolve: (text) => parseInt(text, 8),
};

/** The parser takes some 50 µs for a line. A CDI file of a hundred devices has a thousand lines. */
const entriesMax = 8_192;
const depthMax = 64;
const indentMax = 256;
/** The parser reads a key after a mark "?" twice for each level. */
const keyMarksMax = 16;

/** @throws Error with the key and the reason, without the file name. */
export function readYamlFile<Schema extends v.GenericSchema>(
  file: string,
  bytesMax: number,
  schema: Schema,
): v.InferOutput<Schema> {
  const text = readTextBounded(file, bytesMax, { fatal: true });
  const parsed = check(schema, file.endsWith(".json") ? jsonValue(text) : yamlValue(text));
  if (parsed.success) return parsed.output;
  const [issue] = parsed.issues;
  throw new Error(`${v.getDotPath(issue) ?? "it"}: ${issue.message}`);
}

/** @throws Error, BoundsError before anything is built. */
export function yamlValue(text: string): unknown {
  assertWithin(text);
  const customTags = (tags: Tags): Tags => [octal, ...tags];
  // The parser's own search for keys given twice compares each key with all others.
  const document = parseDocument(text, { customTags, uniqueKeys: false });
  const [error] = document.errors;
  if (error !== undefined) throw error;
  visit(document, {
    Map: (_, { items }) => {
      const keys = new Set<string>();
      for (const { key } of items) {
        if (!isScalar(key)) continue;
        const name = String(key.value);
        if (keys.has(name)) throw new Error(`the key ${name} is given twice in one map`);
        keys.add(name);
      }
    },
  });
  return wellFormed(document.toJS()); // refuses aliases that repeat more than a hundred times what they name
}

function assertWithin(text: string): void {
  let [entries, depth, keyMarks, indent] = [0, 0, 0, 0];
  for (let at = 0; at < text.length; at++) {
    const c = text[at]!;
    const isBreak = c === "\n" || c === "\r";
    indent = isBreak ? 0 : c === " " && indent >= 0 ? indent + 1 : -1;
    if (isBreak || c === "," || c === "[" || c === "{") entries++;
    if (c === "[" || c === "{") depth++;
    if ((c === "]" || c === "}") && depth > 0) depth--;
    if ((c === "?" || c === "-") && /[ \t]/.test(text[at + 1] ?? "")) entries++;
    if (c === "?" && /\s/.test(text[at + 1] ?? "")) keyMarks++;
    if (entries > entriesMax)
      throw new BoundsError(`it has more than ${entriesMax} lines and items`);
    if (depth > depthMax || indent > indentMax) throw new BoundsError("it is nested too deep");
    if (keyMarks > keyMarksMax) throw new BoundsError(`it has more than ${keyMarksMax} marks "?"`);
  }
}
