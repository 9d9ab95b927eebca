// Renders the part of Go's text/template that -o go-template is used with: fields, index, json, len, range, if.
import { jsonText } from "../base/json.ts";
import { quoted } from "../base/text.ts";
import { UsageError } from "./options.ts";

type Node =
  | { kind: "text"; text: string }
  | { kind: "value"; expression: string }
  | { kind: "block"; word: "if" | "range"; expression: string; body: Node[]; otherwise: Node[] };
type Token = { kind: "text" | "action"; text: string };

/** data: as JSON.parse makes it. @throws UsageError for what is not of this part */
export function renderTemplate(template: string, data: unknown): string {
  const tokens = tokensOf(template);
  const nodes = parseNodes(tokens, template);
  if (tokens.length > 0) throw refused(template, `unexpected {{${tokens[0]!.text}}}`);
  return render(nodes, data, { template, root: data });
}

function tokensOf(template: string): Token[] {
  const tokens: Token[] = [];
  const trimmed = template.replaceAll(/\s*\{\{- /g, "{{ ").replaceAll(/ -\}\}\s*/g, " }}");
  for (const [index, part] of trimmed.split(/\{\{([^]*?)\}\}/).entries()) {
    if (index % 2 === 1) tokens.push({ kind: "action", text: part.trim() });
    else if (part.includes("{{")) throw refused(template, "an action has no }}");
    else if (part !== "") tokens.push({ kind: "text", text: part });
  }
  return tokens;
}

/** Takes tokens up to the end, or up to an else or end, which it leaves. */
function parseNodes(tokens: Token[], template: string): Node[] {
  const nodes: Node[] = [];
  for (let token = tokens[0]; token !== undefined; token = tokens[0]) {
    const { kind, text } = token;
    if (kind === "action" && /^(else|end)$/.test(text)) return nodes;
    tokens.shift();
    const [, word, expression = ""] = /^(if|range)\s+([^]*)$/.exec(text) ?? [];
    if (kind === "text") nodes.push({ kind: "text", text });
    else if (word === undefined) nodes.push({ kind: "value", expression: text });
    else nodes.push(parseBlock(word as "if" | "range", expression, tokens, template));
  }
  return nodes;
}

function parseBlock(word: "if" | "range", expression: string, tokens: Token[], template: string) {
  const body = parseNodes(tokens, template);
  const hasElse = tokens[0]?.text === "else";
  if (hasElse) tokens.shift();
  const otherwise = hasElse ? parseNodes(tokens, template) : [];
  if (tokens.shift()?.text !== "end") throw refused(template, `{{${word}}} has no {{end}}`);
  return { kind: "block", word, expression, body, otherwise } as const;
}

type Scope = { template: string; root: unknown };

function render(nodes: readonly Node[], dot: unknown, scope: Scope): string {
  return nodes
    .map((node) => {
      if (node.kind === "text") return node.text;
      const value = evaluate(node.expression, dot, scope);
      if (node.kind === "value") return shown(value);
      if (!isTrue(value)) return render(node.otherwise, dot, scope);
      if (node.word === "if") return render(node.body, dot, scope);
      const items = typeof value === "object" ? Object.values(value as object) : [];
      return items.map((item) => render(node.body, item, scope)).join("");
    })
    .join("");
}

/** A pipeline: each command's result is the last argument of the next. */
function evaluate(expression: string, dot: unknown, scope: Scope): unknown {
  let piped: unknown[] = [];
  for (const command of expression.split("|")) {
    const words = command.match(/"(?:[^"\\]|\\.)*"|[^\s"]+/g) ?? [];
    const [first = "", ...rest] = words;
    const given = rest.map((word) => operand(word, dot, scope));
    piped = [call(first, [...given, ...piped], { dot, scope })];
  }
  return piped[0];
}

function call(word: string, args: unknown[], { dot, scope }: { dot: unknown; scope: Scope }) {
  const [value, ...keys] = args;
  if (word === "json") return jsonText(value);
  if (word === "len") return Object.keys(value ?? {}).length;
  if (word === "index") return keys.reduce((at, key) => member(at, String(key)), value);
  if (args.length > 0) throw refused(scope.template, `unknown function ${quoted(word)}`);
  return operand(word, dot, scope);
}

function operand(word: string, dot: unknown, { template, root }: Scope): unknown {
  if (/^".*"$/s.test(word)) return word.slice(1, -1).replaceAll(/\\(.)/g, escaped);
  if (/^-?\d+$/.test(word)) return Number(word);
  const [, start, path = ""] = /^(\$?)((?:\.\w+)*|\.)$/.exec(word) ?? [];
  if (start === undefined || word === "") {
    throw refused(template, `cannot read ${quoted(word)}; known are .field, index, json, len`);
  }
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
