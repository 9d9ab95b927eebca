// Renders the part of Go's text/template that -o go-template is used with: fields, index, json, len, range, if.
import { jsonText } from "../base/json.ts";
import { quoted } from "../base/text.ts";
import { UsageError } from "./options.ts";

type Node = { kind: "text"; text: string } | { kind: "value"; pipeline: Pipeline } | Block;
type Block = {
  kind: "block";
  word: "if" | "range";
  pipeline: Pipeline;
  body: Node[];
  otherwise: Node[];
};
/** Commands; each one's result is the last argument of the next. */
type Pipeline = readonly (readonly string[])[];
type Token = { kind: "text" | "action"; text: string };

/** data: as JSON.parse makes it. @throws UsageError for what is not of this part */
export function renderTemplate(template: string, data: unknown): string {
  const tokens = tokensOf(template);
  const nodes = parseNodes(tokens, template);
  if (tokens.length > 0) throw refused(template, `unexpected {{${tokens[0]!.text}}}`);
  return render(nodes, data, data);
}

/** What stands between {{ and }}, which may also be in a string. */
const action = /\{\{((?:"(?:[^"\\]|\\.)*"|[^"]){0,1000}?)\}\}/;

function tokensOf(template: string): Token[] {
  const tokens: Token[] = [];
  const pieces = template.split("{{- ");
  const begun = pieces.map((piece, index) => (index < pieces.length - 1 ? piece.trimEnd() : piece));
  const trimmed = begun.join("{{ ").replaceAll(/ -\}\}\s*/g, " }}");
  for (const [index, part] of trimmed.split(action).entries()) {
    if (index % 2 === 1) tokens.push({ kind: "action", text: part.trim() });
    else if (part.includes("{{")) throw refused(template, "an action has no }}");
    else if (part !== "") tokens.push({ kind: "text", text: part });
  }
  return tokens;
}

const elseIf = /^else\s+if\s+(\S[^]*)$/;

/** Takes tokens up to the end, or up to an else or end, which it leaves. */
function parseNodes(tokens: Token[], template: string): Node[] {
  const nodes: Node[] = [];
  for (let token = tokens[0]; token !== undefined; token = tokens[0]) {
    const { kind, text } = token;
    if (kind === "action" && (/^(else|end)$/.test(text) || elseIf.test(text))) return nodes;
    tokens.shift();
    const [, word, expression = ""] = /^(if|range)\s+(\S[^]*)$/.exec(text) ?? [];
    if (kind === "text") nodes.push({ kind: "text", text });
    else if (word === undefined) nodes.push({ kind: "value", pipeline: parse(text, template) });
    else nodes.push(parseBlock(word as "if" | "range", expression, tokens, template));
  }
  return nodes;
}

function parseBlock(
  word: Block["word"],
  expression: string,
  tokens: Token[],
  template: string,
): Block {
  const pipeline = parse(expression, template);
  const body = parseNodes(tokens, template);
  const { text = "" } = tokens.shift() ?? {};
  const [, next] = elseIf.exec(text) ?? [];
  if (next !== undefined) {
    const otherwise = [parseBlock("if", next, tokens, template)];
    return { kind: "block", word, pipeline, body, otherwise };
  }
  const otherwise = text === "else" ? parseNodes(tokens, template) : [];
  const end = text === "else" ? tokens.shift()?.text : text;
  if (end !== "end") throw refused(template, `{{${word}}} has no {{end}}`);
  return { kind: "block", word, pipeline, body, otherwise };
}

const functions = ["index", "json", "len"];
const isString = /^"[^]*"$/;
const isNumber = /^-?\d+$/;
const isField = /^(\$?)((?:\.\w+)*|\.)$/;

/** @throws UsageError for what is not of this part, also in a block that is not rendered */
function parse(expression: string, template: string): Pipeline {
  const commands: string[][] = [[]];
  for (const word of expression.match(/"(?:[^"\\]|\\.)*"|\||[^\s"|]+/g) ?? []) {
    if (word === "|") commands.push([]);
    else commands.at(-1)!.push(word);
  }
  for (const [index, [first = "", ...rest]] of commands.entries()) {
    for (const word of rest) requireOperand(word, template);
    if (functions.includes(first)) continue;
    if (rest.length > 0 || index > 0) throw refused(template, `unknown function ${quoted(first)}`);
    requireOperand(first, template);
  }
  return commands;
}

function requireOperand(word: string, template: string): void {
  if (word !== "" && [isString, isNumber, isField].some((form) => form.test(word))) return;
  throw refused(template, `cannot read ${quoted(word)}; known are .field, index, json, len`);
}

function render(nodes: readonly Node[], dot: unknown, root: unknown): string {
  return nodes
    .map((node) => {
      if (node.kind === "text") return node.text;
      const value = evaluate(node.pipeline, dot, root);
      if (node.kind === "value") return shown(value);
      if (!isTrue(value)) return render(node.otherwise, dot, root);
      if (node.word === "if") return render(node.body, dot, root);
      const items = typeof value === "object" ? Object.values(value as object) : [];
      return items.map((item) => render(node.body, item, root)).join("");
    })
    .join("");
}

function evaluate(pipeline: Pipeline, dot: unknown, root: unknown): unknown {
  let piped: unknown[] = [];
  for (const [first = "", ...rest] of pipeline) {
    const args = [...rest.map((word) => operand(word, dot, root)), ...piped];
    piped = [functions.includes(first) ? call(first, args) : operand(first, dot, root)];
  }
  return piped[0];
}

function call(name: string, [value, ...keys]: readonly unknown[]): unknown {
  if (name === "json") return jsonText(value);
  if (name === "len") return Object.keys(value ?? {}).length;
  return keys.reduce((at, key) => member(at, String(key)), value);
}

function operand(word: string, dot: unknown, root: unknown): unknown {
  if (isString.test(word)) return word.slice(1, -1).replaceAll(/\\(.)/g, escaped);
  if (isNumber.test(word)) return Number(word);
  const [, start, path = ""] = isField.exec(word)!;
  const names = path.split(".").filter(Boolean);
  return names.reduce<unknown>(member, start === "$" ? root : dot);
}

function escaped(_: string, letter: string): string {
  return { n: "\n", t: "\t" }[letter] ?? letter;
}

function member(value: unknown, key: string): unknown {
  return typeof value === "object" && value !== null && Object.hasOwn(value, key)
    ? (value as Record<string, unknown>)[key]
    : undefined;
}

/** Like Go: false, 0, nil, and what is empty are not true. */
function isTrue(value: unknown): boolean {
  if (typeof value === "object" && value !== null) return Object.keys(value).length > 0;
  return Boolean(value);
}

/** Like Go's fmt: lists in [], maps in map[]. */
function shown(value: unknown): string {
  if (value === undefined || value === null) return "<no value>";
  if (Array.isArray(value)) return `[${value.map(shown).join(" ")}]`;
  if (typeof value === "string") return value;
  if (typeof value !== "object") return jsonText(value);
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `map[${entries.map(([key, field]) => `${key}:${shown(field)}`).join(" ")}]`;
}

function refused(template: string, why: string): UsageError {
  return new UsageError(`--template ${quoted(template)}: ${why}`);
}
