// Prints a command's answer as a table, JSON, YAML, or by a template.
import { jsonText } from "../base/json.ts";
import { printable } from "../base/text.ts";
import { UsageError } from "./options.ts";
import { fitted, type Columns } from "./fitted_table.ts";
import { escapedControls, hasUnshown, shownJson, table } from "./text.ts";

const templateArg = {
  template: { type: "string", valueHint: "text", description: "Template of -o go-template" },
} as const;

/** Options of commands whose usual answer is a table. */
export const tableFormatArgs = formatArgs("table");
/** Options of commands whose usual answer is JSON. */
export const jsonFormatArgs = formatArgs("json");

function formatArgs(usual: string) {
  return {
    output: {
      type: "enum",
      alias: "o",
      options: ["table", "json", "yaml", "go-template"] as string[],
      default: usual,
      description: "Output format",
    },
    ...templateArg,
  } as const;
}

export type Format = { output?: string | undefined; template?: string | undefined };

/** @throws UsageError unless --template and -o go-template come together */
export function checkFormat({ output, template }: Format): void {
  if (output === "go-template" && template === undefined) {
    throw new UsageError("-o go-template needs --template, such as '{{.status.id}}'");
  }
  if (output !== "go-template" && template !== undefined) {
    throw new UsageError("--template needs -o go-template");
  }
}

/** value: as JSON shows it. asTable: the table's text. */
export async function show(format: Format, value: unknown, asTable: () => string): Promise<void> {
  checkFormat(format);
  process.stdout.write(format.output === "table" ? asTable() : await textOf(format, value));
}

async function textOf({ output, template }: Format, value: unknown): Promise<string> {
  if (output === "yaml") {
    return await yamlText(value);
  }
  if (output === "json") return `${shownJson(value, 2)}\n`;
  const { renderTemplate } = await import("./go_template.ts");
  const text = `${renderTemplate(template!, value)}\n`;
  return process.stdout.isTTY ? printable(text) : text;
}

async function yamlText(value: unknown): Promise<string> {
  const { Document, visit } = await import("yaml");
  const document = new Document(value);
  visit(document, {
    Scalar: (_, scalar) => {
      // Only in double quotes is an escape one. What has controls gets them anyway.
      if (typeof scalar.value === "string" && hasUnshown(scalar.value))
        scalar.type = "QUOTE_DOUBLE";
    },
  });
  return escapedControls(document.toString({ lineWidth: 0 }), "yaml");
}

/** Formats crictl's table; on a terminal, one that fits its width. whole: never leave anything out. */
export function screenTable(
  rows: readonly (readonly string[])[],
  columns: Columns,
  whole: boolean,
): string {
  if (!process.stdout.isTTY || whole) return table(rows);
  return fitted(rows, screenColumns(), columns);
}

/** Of a terminal that does not report its size, and of text for a pipe. */
const columnsDefault = 80;

/** Returns the width for text that is broken into lines. */
export function screenColumns(): number {
  return (process.stdout.isTTY && process.stdout.columns) || columnsDefault;
}

/** Formats a value as lines of "path: value", for answers that are no list. */
export function propertyTable(value: unknown): string {
  return leaves(value, "")
    .map(([path, text]) => `${printable(`${path}: ${text}`)}\n`)
    .join("");
}

function leaves(value: unknown, path: string): [string, string][] {
  if (value === null || value === undefined || value === "") return [];
  if (typeof value === "string") return [[path, value]];
  if (typeof value !== "object") return [[path, jsonText(value)]];
  return Object.entries(value).flatMap(([key, field]) =>
    leaves(field, Array.isArray(value) ? `${path}[${key}]` : path === "" ? key : `${path}.${key}`),
  );
}
