// Building blocks of cri/request_validation.ts and cri/config_validation.ts. A rule checks one value and gets the
// path of its field, to put both into the error.
import { CriError } from "./errors.ts";
import { toBigInt } from "./int64.ts";
import { clip, quoted } from "./text.ts";

/**
 * @param at the path of the field, such as config.mounts[3].host_path.
 * @throws CriError INVALID_ARGUMENT with path and value.
 */
export type Rule<T> = { (value: T, at: string): void; required?: boolean };

/** Longer values are cut in error messages. */
const shownBytesMax = 80;

export function refuse(at: string, value: unknown, needs: string): never {
  throw new CriError("INVALID_ARGUMENT", `${at} ${shown(value)} ${needs}`);
}

function shown(value: unknown): string {
  return typeof value === "string"
    ? quoted(value, shownBytesMax)
    : clip(String(value), shownBytesMax);
}

/** Applies rules by field. An empty field (unset or "") passes unless its rule is required. */
export function message<T extends object>(fields: {
  [Field in keyof T]?: Rule<NonNullable<T[Field]>>;
}): Rule<T> {
  const rules = Object.entries(fields) as [keyof T & string, Rule<unknown>][];
  return (value, at) => {
    for (const [field, rule] of rules) {
      const part: unknown = value[field];
      const name = at === "" ? field : `${at}.${field}`;
      if (part !== undefined && part !== null && part !== "") rule(part, name);
      else if (rule.required) throw new CriError("INVALID_ARGUMENT", `${name} is missing`);
    }
  };
}

export function required<T>(rule: Rule<T>): Rule<T> {
  return Object.assign((value: T, at: string) => rule(value, at), { required: true });
}

/** Applies all rules. */
export function all<T>(...rules: Rule<T>[]): Rule<T> {
  return (value, at) => rules.forEach((rule) => rule(value, at));
}

export function list<T>(countMax: number, each: Rule<T>): Rule<readonly T[]> {
  return (values, at) => {
    if (values.length > countMax) {
      const message = `${at} has ${values.length} entries, over ${countMax}`;
      throw new CriError("INVALID_ARGUMENT", message);
    }
    values.forEach((value, index) => each(value, `${at}[${index}]`));
  };
}

type MapRules = { countMax: number; bytesMax: number; key: Rule<string>; value?: Rule<string> };

/** bytesMax limits all keys and values together. */
export function map({ countMax, bytesMax, key, value }: MapRules): Rule<Record<string, string>> {
  return (values, at) => {
    const entries = Object.entries(values);
    const bytes = entries.reduce(
      (sum, [name, text]) => sum + byteLength(name) + byteLength(text),
      0,
    );
    if (entries.length > countMax || bytes > bytesMax) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `${at} has ${entries.length} entries of ${bytes} bytes, over ${countMax} or ${bytesMax}`,
      );
    }
    for (const [name, text] of entries) {
      key(name, `a key of ${at}`);
      value?.(text, `${at}[${shown(name)}]`);
    }
  };
}

/** needs: the requirement to state when the pattern does not match. */
export function text(bytesMax: number, pattern: RegExp, needs: string): Rule<string> {
  return (value, at) => {
    const bytes = byteLength(value);
    if (bytes > bytesMax) refuse(at, value, `has ${bytes} bytes, over ${bytesMax}`);
    if (!pattern.test(value)) refuse(at, value, needs);
  };
}

/** Like text, but errors never show the value. */
export function secret(bytesMax: number): Rule<string> {
  return (value, at) => {
    if (byteLength(value) <= bytesMax && !value.includes("\0")) return;
    throw new CriError("INVALID_ARGUMENT", `${at} is over ${bytesMax} bytes or has a NUL`);
  };
}

/** Accepts the values of an enum. */
export function oneOf(values: object): Rule<number> {
  return (value, at) => {
    if (value in values) return; // generated enums have both names and numbers as keys
    const names = Object.keys(values);
    refuse(at, value, `is none of ${names.length > 8 ? "its enum" : names.join(", ")}`);
  };
}

type Int64 = Parameters<typeof toBigInt>[0];

/** Accepts integers from min to max, 0 as "not set", and `also`. */
export function range(min: bigint, max: bigint, also?: bigint): Rule<NonNullable<Int64>> {
  return (value, at) => {
    const number = toBigInt(value);
    if (number === 0n || number === also || (number >= min && number <= max)) return;
    const extra = also === undefined ? "" : `${also} or `;
    refuse(at, number, `must be ${extra}${min} to ${max}`);
  };
}

export function byteLength(text: string): number {
  return Buffer.byteLength(text);
}
