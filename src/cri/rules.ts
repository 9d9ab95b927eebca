// What rules for a request's fields are made of (check.ts has the rules themselves). A rule looks at
// one value and knows its name, so that a refusal tells both.
import { CriError } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { clip, quoted } from "../base/text.ts";

/**
 * @param at the field's name, as config.mounts[3].host_path.
 * @throws CriError INVALID_ARGUMENT with name and value.
 */
export type Rule<T> = { (value: T, at: string): void; required?: boolean };

/** How much of a value a message shows. */
const shownBytesMax = 80;

export function refuse(at: string, value: unknown, needs: string): never {
  throw new CriError("INVALID_ARGUMENT", `${at} ${shown(value)} ${needs}`);
}

function shown(value: unknown): string {
  return typeof value === "string"
    ? quoted(value, shownBytesMax)
    : clip(String(value), shownBytesMax);
}

/** Rules by field. One that is not given ("" and unset alike) passes, unless it is required. */
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

/** All of them. */
export function both<T>(...rules: Rule<T>[]): Rule<T> {
  return (value, at) => rules.forEach((rule) => rule(value, at));
}

export function list<T>(countMax: number, each: Rule<T>): Rule<readonly T[]> {
  return (values, at) => {
    if (values.length > countMax) {
      throw new CriError("INVALID_ARGUMENT", `${at} has ${values.length} parts, over ${countMax}`);
    }
    values.forEach((value, index) => each(value, `${at}[${index}]`));
  };
}

type MapRules = { countMax: number; bytesMax: number; key: Rule<string>; value?: Rule<string> };

/** bytesMax: of all keys and values together. */
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

/** needs: what a value that does not match must be. */
export function text(bytesMax: number, pattern: RegExp, needs: string): Rule<string> {
  return (value, at) => {
    const bytes = byteLength(value);
    if (bytes > bytesMax) refuse(at, value, `has ${bytes} bytes, over ${bytesMax}`);
    if (!pattern.test(value)) refuse(at, value, needs);
  };
}

/** As text, but a message never shows the value. */
export function secret(bytesMax: number): Rule<string> {
  return (value, at) => {
    if (byteLength(value) <= bytesMax && !value.includes("\0")) return;
    throw new CriError("INVALID_ARGUMENT", `${at} is over ${bytesMax} bytes, or has a NUL`);
  };
}

/** One of an enum's values. */
export function oneOf(values: object): Rule<number> {
  return (value, at) => {
    if (value in values) return; // the generated objects know names and numbers
    const names = Object.keys(values);
    refuse(at, value, `is none of ${names.length > 8 ? "its enum" : names.join(", ")}`);
  };
}

type Int64 = Parameters<typeof toBigInt>[0];

/** A whole number from min to max; 0 is always "not given". also: one more that counts. */
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
