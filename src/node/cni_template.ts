// Renders a CNI list from a template and the node's pod CIDRs, for nodes where the kubelet hands out CIDRs
// and no network add-on writes lists. Supports the part of Go's text/template that containerd's
// conf_template needs: {{.PodCIDR}}, {{range $i, $range := .PodCIDRRanges}} and .Routes, {{$range}},
// {{if $i}}, {{end}}.
import { CriError, messageOf } from "../base/errors.ts";
import { readTextBounded } from "../sys/file.ts";

const templateBytesMax = 1 << 20;

type Scope = { [name: string]: string | string[] };

/** @throws CriError FAILED_PRECONDITION when the file cannot be read. */
export function readCniTemplate(path: string): string {
  try {
    return readTextBounded(path, templateBytesMax);
  } catch (cause) {
    const message = `cannot read the CNI template ${path} (key cni-conf-template): ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

/**
 * Renders the template for these CIDRs ("10.1.0.0/24"), IPv4 and IPv6.
 * @throws CriError FAILED_PRECONDITION with the unsupported part.
 */
export function renderCniTemplate(template: string, cidrs: string[]): string {
  const routes = cidrs.map((cidr) => (cidr.includes(":") ? "::/0" : "0.0.0.0/0"));
  const scope: Scope = {
    ".PodCIDR": cidrs[0] ?? "",
    ".PodCIDRRanges": cidrs,
    ".Routes": [...new Set(routes)],
  };
  const pieces = template.split(/\{\{-\s/);
  const begun = pieces.map((piece, index) => (index < pieces.length - 1 ? piece.trimEnd() : piece));
  const trimmed = begun.join("{{").replaceAll(/\s-\}\}\s*/g, "}}");
  const parts = trimmed.split(/(\{\{.{0,1000}?\}\})/s);
  const out: string[] = [];
  const renderer = { parts, out };
  if (renderBlock(renderer, { at: 0, depth: 0, scope, shown: true }) < parts.length) {
    throw invalid("{{end}}", "it closes nothing");
  }
  return out.join("");
}

type Renderer = { parts: string[]; out: string[] };
type Block = { at: number; depth: number; scope: Scope; shown: boolean };

/** Renders up to the block's {{end}} or the end of the text; returns the index of the next part. */
function renderBlock(renderer: Renderer, { at, depth, scope, shown }: Block): number {
  const { parts, out } = renderer;
  while (at < parts.length) {
    const part = parts[at++]!;
    const action = /^\{\{.*\}\}$/s.test(part) ? part.slice(2, -2).trim() : undefined;
    const inner = { at, depth: depth + 1, scope, shown };
    if (action === undefined) {
      if (shown) out.push(part);
      continue;
    }
    if (action === "end") return depth === 0 ? at - 1 : at;
    const range = /^range\s+(?:\$(\w+)\s*,\s*)?\$(\w+)\s*:=\s*(\.\w+)$/.exec(action);
    const condition = /^if\s+([.$]\w+)$/.exec(action)?.[1];
    if (range !== null) {
      at = renderRange(renderer, inner, { index: range[1], item: range[2]!, list: range[3]! });
    } else if (condition !== undefined) {
      const value = valueOf(scope, condition, part);
      const isTrue = value.length > 0 && value !== "0";
      at = renderBlock(renderer, { ...inner, shown: shown && isTrue });
    } else if (shown) {
      out.push(String(valueOf(scope, action, part)));
    }
  }
  if (depth > 0) throw invalid("{{range}} or {{if}}", "its {{end}} is missing");
  return at;
}

type Range = { index: string | undefined; item: string; list: string };

function renderRange(renderer: Renderer, inner: Block, { index, item, list }: Range): number {
  const values = valueOf(inner.scope, list, list);
  if (!Array.isArray(values)) throw invalid(list, "it is not a list");
  let next = 0;
  const rounds = inner.shown && values.length > 0 ? values : [undefined];
  for (const [count, value] of rounds.entries()) {
    const scope = { ...inner.scope, [`$${item}`]: value ?? "" };
    if (index !== undefined) scope[`$${index}`] = String(count);
    next = renderBlock(renderer, { ...inner, scope, shown: value !== undefined });
  }
  return next;
}

function valueOf(scope: Scope, name: string, part: string): string | string[] {
  if (Object.hasOwn(scope, name)) return scope[name]!;
  const names = Object.keys(scope).join(", ");
  throw invalid(part.trim(), `unsupported; use ${names}, range, if and end`);
}

function invalid(part: string, problem: string): CriError {
  return new CriError("FAILED_PRECONDITION", `the CNI template's ${part}: ${problem}`);
}
