// Fits a table to the width of a terminal. Pure.
import { beginning, cellsOf, ending, padded } from "./cells.ts";
import { lineText } from "./text.ts";

const gap = 2;
/** Names are cut below this width only after the columns that the table could do without are left out. */
const nameMin = 12;
const cutMin = 8;
/** Columns that are of little use when they are cut. */
const whole = new Set(["CONTAINER", "POD ID", "IMAGE ID", "CREATED", "STATE"]);
/** Columns whose texts differ at both ends: "web-7d9c5b8f6d-x2x4z". */
const cutInside = new Set(["NAME", "POD", "PLUGIN"]);
const endKept = 6;

/** In each list the least important column is last. */
export type Columns = {
  /** Left out where not all fits without a cut. */
  dispensable?: readonly string[];
  /** Left out where names would be cut to a few letters. */
  narrow?: readonly string[];
};

type Column = { at: number; header: string; width: number };

/**
 * Formats columns for a terminal of this width. If they are too wide, ages become short, the columns named in
 * `dispensable` and `narrow` are left out, and the widest others are cut, down to 8 characters.
 */
export function fitted(
  texts: readonly (readonly string[])[],
  columns: number,
  { dispensable = [], narrow = [] }: Columns,
): string {
  const table = texts.map((row) => row.map(lineText));
  const header = table[0] ?? [];
  const room = columns - 1;
  let rows = table;
  let kept = columnsOf(rows);
  const leaveOut = (name: string) => (kept = kept.filter(({ header }) => header !== name));
  const fits = (widthOf: (column: Column) => number) =>
    kept.reduce((sum, column) => sum + widthOf(column) + gap, -gap) <= room;
  const isWide = () => !fits(({ width }) => width);
  if (isWide()) {
    rows = table.map((row) =>
      row.map((cell, at) => (header[at] === "CREATED" ? shortAge(cell) : cell)),
    );
    kept = columnsOf(rows);
  }
  for (const name of dispensable.toReversed()) if (isWide()) leaveOut(name);
  const least = (column: Column) =>
    Math.min(column.width, whole.has(column.header) ? Infinity : nameMin);
  for (const name of narrow.toReversed()) if (!fits(least)) leaveOut(name);
  cut(kept, isWide, ({ header }) => !whole.has(header));
  cut(kept, isWide, () => true);
  const line = (row: readonly string[]) =>
    kept.map(({ at, header, width }) => padded(shortened(row[at] ?? "", header, width), width));
  return rows.map((row) => `${line(row).join(" ".repeat(gap)).trimEnd()}\n`).join("");
}

function columnsOf(rows: readonly (readonly string[])[]): Column[] {
  return (rows[0] ?? []).map((header, at) => {
    return { at, header, width: Math.max(...rows.map((row) => cellsOf(row[at] ?? ""))) };
  });
}

function cut(
  kept: readonly Column[],
  isWide: () => boolean,
  may: (column: Column) => boolean,
): void {
  const candidates = kept.filter(may);
  while (isWide() && candidates.length > 0) {
    const widest = candidates.reduce((a, b) => (b.width > a.width ? b : a));
    if (widest.width <= cutMin) return;
    widest.width--;
  }
}

function shortened(text: string, header: string, width: number): string {
  if (cellsOf(text) <= width) return text;
  if (header === "IMAGE") return `…${ending(text, width - 1)}`; // images differ at their ends
  const end = cutInside.has(header) && width > endKept + 3 ? ending(text, endKept) : "";
  return `${beginning(text, width - 1 - cellsOf(end))}…${end}`;
}

/** "3 minutes ago" → "3m" */
function shortAge(text: string): string {
  const [, count, unit = ""] = /^(\d+|About an?|Less than a) (\w+?)s? ago$/.exec(text) ?? [];
  if (count === undefined) return text;
  const letters = unit === "month" ? "mo" : unit.slice(0, 1);
  return `${/^\d/.test(count) ? count : count.startsWith("About") ? 1 : 0}${letters}`;
}
