// Parses the filters of containerd's lists (github.com/containerd/containerd/v2/pkg/filters) and applies them.
//
//   filter    = condition *("," condition)        all hold
//   condition = field [("==" / "!=") value]        without a value: the field is there and not empty
//   field     = "id" / "image" / "labels" "." key  a key with dots or slashes is quoted: labels."a.b/c"
//   value     = a text in double quotes, with the escapes of JSON, or one without blanks and commas
import { CriError } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import { quoted } from "../base/text.ts";

export type FilteredContainer = { id: string; image: string; labels: Record<string, string> };

type Condition = (one: FilteredContainer) => boolean;

/** Returns true for a container that passes one of the filters; every container passes an empty list. */
export function containerdFilter(filters: readonly string[]): Condition {
  const parsed = filters.map((filter) => conditionsOf(filter));
  return (one) =>
    parsed.length === 0 || parsed.some((conditions) => conditions.every((holds) => holds(one)));
}

const condition =
  /(id|image|labels\.(?:[A-Za-z][A-Za-z0-9_]*|"(?:[^"\\]|\\.)*"))(?:(==|!=)("(?:[^"\\]|\\.)*"|[^\s,"]+))?(,|$)/y;

/** @throws CriError INVALID_ARGUMENT. */
function conditionsOf(filter: string): Condition[] {
  const conditions: Condition[] = [];
  let ended = filter === "";
  for (condition.lastIndex = 0; !ended;) {
    const match = condition.exec(filter);
    if (match === null) throw unusable(filter);
    const [, field = "", operator, value = "", end] = match;
    const read = fieldReader(field, filter);
    const wanted = textOf(value, filter);
    conditions.push((one) => {
      const got = read(one);
      if (operator === undefined) return got !== undefined && got !== "";
      return (got === wanted) === (operator === "==");
    });
    ended = end === "";
  }
  return conditions;
}

function fieldReader(
  field: string,
  filter: string,
): (one: FilteredContainer) => string | undefined {
  if (field === "id") return ({ id }) => id;
  if (field === "image") return ({ image }) => image;
  const key = textOf(field.slice("labels.".length), filter);
  return ({ labels }) => (Object.hasOwn(labels, key) ? labels[key] : undefined);
}

function textOf(text: string, filter: string): string {
  if (!text.startsWith('"')) return text;
  try {
    return String(jsonValue(text));
  } catch {
    throw unusable(filter);
  }
}

function unusable(filter: string): CriError {
  const example = 'labels."io.kubernetes.pod.uid"==4f2a,id!=5';
  const message = `the filter ${quoted(filter, 200)} cannot be used: conditions on id, image and labels by ==, != or presence are supported, such as ${example}`;
  return new CriError("INVALID_ARGUMENT", message);
}
