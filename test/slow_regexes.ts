// Finds regular expressions whose time grows faster than the text that they search: two unbounded repetitions that can
// share characters, as in /\s*(.*?)\s*$/, or one that is tried from each character anew, as in /\s+$/.
import { parse } from "acorn";
import { analyse } from "scslre";

type Node = { type: string; start: number; [key: string]: unknown };

/** A pattern that is written in the source; or one that is made while the program runs, which nobody can check. */
export type Found = { line: number; text: string; why: string };

/** By pattern and flags: many files have the same. */
const known = new Map<string, string | undefined>();

const transpiler = new Bun.Transpiler({ loader: "ts", target: "bun" });

/** Returns the slow patterns of a TypeScript source. */
export function slowRegexes(source: string): Found[] {
  const found: Found[] = [];
  const script = transpiler.transformSync(source);
  for (const node of nodesIn(parse(script, { ecmaVersion: "latest", sourceType: "module" }))) {
    const { regex, raw } = node as { regex?: { pattern: string; flags: string }; raw?: string };
    const why =
      regex === undefined ? whyMade(node) : whySlow(new RegExp(regex.pattern, regex.flags));
    if (why === undefined) continue;
    const text = raw ?? script.slice(node.start, script.indexOf(";", node.start));
    found.push({ line: lineOf(source, text), text, why });
  }
  return found;
}

/** Says why a pattern is slow; undefined: it is not. */
export function whySlow(pattern: RegExp): string | undefined {
  const key = String(pattern);
  if (!known.has(key)) known.set(key, analysed(pattern));
  return known.get(key);
}

function analysed(pattern: RegExp): string | undefined {
  const [report] = analyse(pattern).reports;
  if (report === undefined) return undefined;
  if (report.type === "Move") return "it is tried anew from each character of a long run";
  return "two repetitions can share the same characters";
}

/** Says why an expression is not checked, if it makes a pattern from anything but one text. */
function whyMade(node: Node): string | undefined {
  if (node.type !== "NewExpression" && node.type !== "CallExpression") return undefined;
  const { callee } = node as unknown as { callee: Node };
  if (callee.type !== "Identifier" || callee["name"] !== "RegExp") return undefined;
  return "the pattern is made while the program runs";
}

function* nodesIn(value: unknown): Generator<Node> {
  if (typeof value !== "object" || value === null) return;
  if (!Array.isArray(value) && typeof (value as Node).type === "string") yield value as Node;
  for (const part of Object.values(value)) yield* nodesIn(part);
}

/** The transpiler moves lines, so the text is looked up. */
function lineOf(source: string, text: string): number {
  return source.slice(0, Math.max(0, source.indexOf(text))).split("\n").length;
}
