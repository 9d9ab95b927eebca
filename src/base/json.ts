// Reads and writes JSON: bounded before anything is built of it, with bigints, with lone surrogates repaired, and with
// a strict reader (RFC 8259, no duplicate keys) that knows the line of each value, for messages about daemon.json. No
// other file of src calls JSON.stringify or JSON.parse (test/tidy.test.ts).

import { assertWithin, assertWithinInSlices, type JsonBounds, usualBounds } from "./json_bounds.ts";
import { printable, wellFormed } from "./text.ts";

// TypeScript's library does not declare rawJSON yet.
const raw = JSON as unknown as { rawJSON(text: string): unknown };

/** Returns any value as JSON; a bigint keeps every digit. */
export function jsonText(value: unknown, indent?: number): string {
  const exact = (_key: string, part: unknown) =>
    typeof part === "bigint" ? raw.rawJSON(part.toString()) : part;
  return JSON.stringify(value, exact, indent) ?? "null";
}

export type Reviver = (key: string, value: unknown, context: { source?: string }) => unknown;

/**
 * Parses JSON from outside; an escaped lone surrogate is valid and becomes U+FFFD, as in Go.
 * @throws SyntaxError, BoundsError.
 */
export function jsonValue(text: string, revive?: Reviver, bounds: JsonBounds = usualBounds) {
  assertWithin(text, bounds);
  return trustedJsonValue(text, revive);
}

/**
 * Like jsonValue(), for long texts, or their bytes in UTF-8: gives way to other calls. The text of bytes is made once they
 * have been found within the bounds: a refused document does not take its memory twice. @throws TypeError if not UTF-8.
 */
export async function longJsonValue(
  text: string | Uint8Array,
  bounds: JsonBounds,
  revive?: Reviver,
) {
  if (typeof text === "string") {
    await assertWithinInSlices(text, bounds);
    return trustedJsonValue(text, revive);
  }
  const { buffer, byteOffset, length } = text;
  await assertWithinInSlices(Buffer.from(buffer, byteOffset, length), bounds);
  return trustedJsonValue(new TextDecoder("utf-8", { fatal: true }).decode(text), revive);
}

/** Like jsonValue(), without bounds: for what isulad-ts has written, and what only the user of a command waits for. */
export function trustedJsonValue(text: string, revive?: Reviver): unknown {
  const value: unknown = JSON.parse(
    text.toWellFormed(),
    revive as (key: string, value: unknown) => unknown,
  );
  return /\\u[dD]/.test(text) ? wellFormed(value) : value;
}

/** Returns the value without members that are null: Go programs write null for absent members, and read it so. */
export function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).filter(([, member]) => member !== null);
  return Object.fromEntries(entries.map(([key, member]) => [key, withoutNulls(member)]));
}

/** Reviver for jsonValue(): integers that a number cannot hold become bigint. */
export const exactIntegers: Reviver = (_key, value, { source = "" }) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(source)
    ? BigInt(source)
    : value;

/**
 * Parses text of jsonText() without repairing surrogates, which stand for bytes in names of a layer's files
 * (layer/tar_fields.ts). @throws SyntaxError
 */
export function verbatimJsonValue(text: string): unknown {
  return JSON.parse(text);
}

/** A value with its place: the file as it was passed to parseWithLines(), and the line. */
export type JsonNode = { file: string; line: number } & (
  | { kind: "scalar"; value: string | number | boolean | null }
  | { kind: "list"; items: JsonNode[] }
  | { kind: "object"; members: JsonMember[] }
);

type JsonMember = { key: string; line: number; node: JsonNode };

export class JsonSyntaxError extends Error {
  override readonly name = "JsonSyntaxError";
  readonly line: number;

  constructor(line: number, message: string) {
    super(message);
    this.line = line;
  }
}

const depthMax = 64;

/** Parses a file's text to values with their places. @throws JsonSyntaxError with the line. */
export function parseWithLines(text: string, file = ""): JsonNode {
  const reader = new Reader(text.startsWith("\uFEFF") ? text.slice(1) : text, file);
  const node = reader.value(0);
  reader.end();
  return node;
}

/** Returns the plain value; a key such as "__proto__" becomes an ordinary property. */
export function plainValue(node: JsonNode): unknown {
  if (node.kind === "scalar") return node.value;
  if (node.kind === "list") return node.items.map(plainValue);
  return Object.fromEntries(node.members.map(({ key, node }) => [key, plainValue(node)]));
}

/**
 * Merges a later value into an earlier one: objects merge by key at every depth, any other value replaces the
 * earlier. Each part keeps its place.
 */
export function merged(earlier: JsonNode, later: JsonNode): JsonNode {
  if (earlier.kind !== "object" || later.kind !== "object") return later;
  const members = new Map(earlier.members.map((member) => [member.key, member]));
  for (const member of later.members) {
    const old = members.get(member.key);
    const node = old === undefined ? member.node : merged(old.node, member.node);
    const { line } = node === member.node ? member : old!;
    members.set(member.key, { key: member.key, line, node });
  }
  return { ...earlier, members: [...members.values()] };
}

/** Returns the place "FILE:LINE" of the value at `path`, or of the deepest existing part of the path. */
export function placeAt(node: JsonNode, path: readonly (string | number)[]): string {
  let { file, line } = node;
  let at: JsonNode | undefined = node;
  for (const step of path) {
    const member: JsonMember | undefined =
      at.kind === "object" ? at.members.find(({ key }) => key === step) : undefined;
    at = at.kind === "list" ? at.items[Number(step)] : member?.node;
    if (at === undefined) break;
    ({ line } = member ?? at);
    ({ file } = at);
  }
  return `${file}:${line}`;
}

class Reader {
  readonly #text: string;
  readonly #file: string;
  #at = 0;
  #line = 1;

  constructor(text: string, file: string) {
    this.#text = text;
    this.#file = file;
  }

  value(depth: number): JsonNode {
    this.#space();
    if (depth > depthMax) this.#fail(`nested deeper than ${depthMax} levels`);
    const place = { file: this.#file, line: this.#line };
    const first = this.#text[this.#at];
    if (first === "{") return { ...place, kind: "object", members: this.#object(depth) };
    if (first === "[") return { ...place, kind: "list", items: this.#list(depth) };
    if (first === '"') return { ...place, kind: "scalar", value: this.#string() };
    return { ...place, kind: "scalar", value: this.#word() };
  }

  end(): void {
    this.#space();
    if (this.#at < this.#text.length) this.#fail(`unexpected ${this.#here()} after the end`);
  }

  #object(depth: number): JsonMember[] {
    const members: JsonMember[] = [];
    const lines = new Map<string, number>();
    this.#at++;
    if (this.#take("}")) return members;
    do {
      this.#space();
      const line = this.#line;
      if (this.#text[this.#at] !== '"')
        this.#expected("a key in double quotes", members.length > 0);
      const key = this.#string();
      const earlier = lines.get(key);
      if (earlier !== undefined) this.#fail(`"${key}" is given twice, first in line ${earlier}`);
      lines.set(key, line);
      if (!this.#take(":")) this.#expected(`":" after "${key}"`, false);
      members.push({ key, line, node: this.value(depth + 1) });
    } while (this.#take(","));
    if (!this.#take("}")) this.#expectedEnd("}");
    return members;
  }

  #list(depth: number): JsonNode[] {
    const items: JsonNode[] = [];
    this.#at++;
    if (this.#take("]")) return items;
    do {
      this.#space();
      if (this.#text[this.#at] === "]") this.#expected("a value", true);
      items.push(this.value(depth + 1));
    } while (this.#take(","));
    if (!this.#take("]")) this.#expectedEnd("]");
    return items;
  }

  #string(): string {
    const raw = this.#match(/"(?:[^"\\]|\\.)*"/sy) ?? "";
    try {
      return String(jsonValue(raw));
    } catch {
      return this.#fail("a string that does not end, or holds a control character or a bad escape");
    }
  }

  #word(): number | boolean | null {
    const raw = this.#match(/true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y);
    if (raw === undefined) this.#expected("a value", false);
    return jsonValue(raw) as number | boolean | null;
  }

  #match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const raw = pattern.exec(this.#text)?.[0];
    if (raw !== undefined) this.#at += raw.length;
    return raw;
  }

  #take(mark: string): boolean {
    this.#space();
    if (this.#text[this.#at] !== mark) return false;
    this.#at++;
    return true;
  }

  #space(): void {
    for (; this.#at < this.#text.length; this.#at++) {
      const c = this.#text[this.#at];
      if (c === "\n") this.#line++;
      else if (c !== " " && c !== "\t" && c !== "\r") return;
    }
  }

  #here(): string {
    const rest = this.#text.slice(this.#at, this.#at + 12).split("\n")[0];
    if (rest === undefined || rest === "") return "the end of the file";
    // A text with quotes of its own stays as the file has it.
    return rest.startsWith('"') ? printable(rest) : jsonText(rest);
  }

  #expectedEnd(mark: string): never {
    const isValue = /["\w{[-]/.test(this.#text[this.#at] ?? "");
    if (isValue) this.#fail(`a comma is missing before ${this.#here()}`);
    this.#expected(`"," or "${mark}"`, false);
  }

  #expected(what: string, afterComma: boolean): never {
    const c = this.#text[this.#at];
    if (c === "#" || c === "/") this.#fail("JSON knows no comments");
    if (afterComma && (c === "}" || c === "]")) this.#fail(`a comma before "${c}"`);
    this.#fail(`expected ${what}, found ${this.#here()}`);
  }

  #fail(message: string): never {
    throw new JsonSyntaxError(this.#line, message);
  }
}
