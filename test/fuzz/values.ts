// Makes hostile values, and puts them into requests that were valid.
import protobuf from "protobufjs";
import { Raw, type Scalar, type Tree, unknownField, unknownFields, type Value } from "./wire.ts";

/** A whole number from 0 up to, but not, `below`. */
export type Chance = (below: number) => number;

export function chanceOf(next: () => number): Chance {
  return (below) => Math.floor(next() * below);
}

export function pick<T>(chance: Chance, from: readonly T[]): T {
  return from[chance(from.length)]!;
}

/** Bytes that are not UTF-8: lone surrogates, cut and overlong characters, latin1. */
const brokenUtf8 = [
  "eda080",
  "edb080",
  "61eda08062",
  "f09f98",
  "c3",
  "ff",
  "c080",
  "f8888080",
  "e9",
];
const ints = [
  0n,
  1n,
  2n,
  -1n,
  255n,
  65_536n,
  2n ** 31n - 1n,
  2n ** 31n,
  -(2n ** 31n),
  2n ** 32n,
  2n ** 53n + 1n,
  2n ** 63n - 1n,
  -(2n ** 63n),
];
const floats = [0, -0, 1, -1, NaN, Infinity, -Infinity, 1e308, 5e-324];
/** Where this project and kubelets cut texts: a character may lie across the border. */
const borders = [63, 253, 300, 1_024, 4_096, 8_192, 16_384];
const texts = [
  "",
  " ",
  "\0",
  "a\0b",
  "\n",
  "a\r\nb",
  "\u001B[2J",
  "..",
  "../..",
  "/",
  "a/../../b",
  "-",
  "--help",
  "%s%n%d",
  "${x}",
  "$(x)",
  "__proto__",
  "constructor",
  "toString",
  "*",
  "[",
  "null",
  "0",
  "-1",
  "1e999",
  "\uFEFF",
  "\u202Eabc",
  "é",
  "😀",
  "é".normalize("NFD"),
  '{"a":1}',
];

export function hostileText(chance: Chance): string | Raw {
  switch (chance(7)) {
    case 0:
      return new Raw(Buffer.from(pick(chance, brokenUtf8), "hex"));
    case 1: {
      const border = pick(chance, borders);
      return `${"x".repeat(border - 1 - chance(3))}😀${"y".repeat(chance(9))}`;
    }
    case 2:
      return chance(20) === 0
        ? "z".repeat(1 << 20)
        : pick(chance, ["w", "漢"]).repeat(chance(9_000));
    default:
      return pick(chance, texts);
  }
}

/** Hostile text as JavaScript has it: lone surrogates for bytes that are not UTF-8. */
export function hostileString(chance: Chance): string {
  const text = hostileText(chance);
  return text instanceof Raw ? pick(chance, ["\uD800", "a\uDC00b", "\uD83D"]) : text;
}

function hostileScalar(type: string, isEnum: boolean, chance: Chance): Scalar {
  if (isEnum) return pick(chance, [0n, 1n, 2n, 3n, 99n, -1n]);
  if (type === "string") return hostileText(chance);
  if (type === "bytes") return Buffer.alloc(pick(chance, [0, 1, 100, 70_000]), chance(256));
  if (type === "bool") return chance(2) === 0;
  return type === "double" || type === "float" ? pick(chance, floats) : pick(chance, ints);
}

function isEnum(field: protobuf.FieldBase): boolean {
  return field.resolvedType instanceof protobuf.Enum;
}

const depthMax = 12;
/** How often a list repeats an item. */
const many = [1, 20, 100, 100, 100, 100, 100, 5_000];

/** Changes the tree in one place, which may be one that was not there. */
export function mutate(type: protobuf.Type, tree: Tree, chance: Chance, depth = 0): void {
  const fields = type.fieldsArray;
  // What is there is more telling than what is not.
  const present = fields.filter((field) => tree[field.name] !== undefined);
  const from = present.length > 0 && chance(3) > 0 ? present : fields;
  const field = from.length === 0 ? undefined : pick(chance, from);
  // With another id a request ends at once.
  const isKept = field?.name.endsWith("_id") && chance(4) > 0;
  if (field === undefined || isKept || chance(25) === 0) {
    tree[unknownFields] = unknownField(1_000 + chance(1_000), Buffer.alloc(chance(50), 0xed));
    return;
  }
  const { name, resolvedType } = field;
  if (chance(10) === 0) {
    delete tree[name];
  } else if (field instanceof protobuf.MapField) {
    tree[name] = hostileMap(field, (tree[name] ?? []) as [Value, Value][], chance);
  } else if (resolvedType instanceof protobuf.Type) {
    mutateMessage(field, resolvedType, tree, chance, depth);
  } else if (field.repeated) {
    tree[name] = hostileList(field, (tree[name] ?? []) as Value[], chance);
  } else {
    tree[name] = hostileScalar(field.type, isEnum(field), chance);
  }
}

function mutateMessage(
  field: protobuf.Field,
  type: protobuf.Type,
  tree: Tree,
  chance: Chance,
  depth: number,
): void {
  const { name } = field;
  if (!field.repeated) {
    if (chance(12) === 0 || depth > depthMax) tree[name] = {};
    else mutate(type, (tree[name] ??= {}) as Tree, chance, depth + 1);
    return;
  }
  const list = (tree[name] ??= []) as Value[];
  if (chance(12) === 0) {
    tree[name] = Array.from({ length: pick(chance, many) }, () => list[0] ?? {});
    return;
  }
  if (list.length === 0 || chance(4) === 0) list.push({});
  const at = chance(list.length);
  const one = { ...(list[at] as Tree) };
  if (depth <= depthMax) mutate(type, one, chance, depth + 1);
  list[at] = one;
}

function hostileList(field: protobuf.Field, list: Value[], chance: Chance): Value[] {
  const one = () => hostileScalar(field.type, isEnum(field), chance);
  switch (chance(5)) {
    case 0:
      return [];
    case 1:
      return Array.from({ length: pick(chance, many) }, () => list[0] ?? one());
    default:
      return list.length === 0 || chance(2) === 0
        ? [...list, one()]
        : list.with(chance(list.length), one());
  }
}

function hostileMap(
  field: protobuf.MapField,
  pairs: [Value, Value][],
  chance: Chance,
): [Value, Value][] {
  const key = (): Value => hostileScalar(field.keyType, false, chance);
  const value = (): Value =>
    field.resolvedType instanceof protobuf.Type
      ? {}
      : hostileScalar(field.type, isEnum(field), chance);
  const known = pairs[0]?.[0] ?? "k";
  switch (chance(5)) {
    case 0:
      return [...pairs, [known, value()], [known, value()]];
    case 1:
      return Array.from({ length: pick(chance, many) }, (_, i) => [`k${i}`, value()]);
    case 2:
      return [...pairs, [known, value()]];
    default:
      return [...pairs, [key(), value()]];
  }
}
