// Measures, pads and cuts text by the cells that it takes on a terminal: names and commands may have letters of two
// cells (Chinese, emoji) or none (accents that combine). Pure.

const oneCellEach = /^[\u0020-\u007e]*$/;
const noCell = /^[\p{Mn}\p{Me}\p{Cf}]/u;
/** Blocks of Unicode whose characters are wide or full width (UAX #11), without the few exceptions in them. */
const twoCells =
  /^[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{16fe0}-\u{18cff}\u{1b000}-\u{1b2ff}\u{1f300}-\u{1f64f}\u{1f680}-\u{1f6ff}\u{1f7e0}-\u{1f7eb}\u{1f900}-\u{1f9ff}\u{1fa70}-\u{1faff}\u{20000}-\u{3fffd}]|^\p{Emoji_Presentation}/u;

function cellsOfCharacter(character: string): number {
  if (noCell.test(character)) return 0;
  return twoCells.test(character) ? 2 : 1;
}

/** Returns the cells of a text without control characters. */
export function cellsOf(text: string): number {
  if (oneCellEach.test(text)) return text.length;
  let cells = 0;
  for (const character of text) cells += cellsOfCharacter(character);
  return cells;
}

/** As padEnd(). */
export function padded(text: string, cells: number): string {
  return text + " ".repeat(Math.max(0, cells - cellsOf(text)));
}

/** Returns the longest beginning that takes at most this many cells, with whole characters. */
export function beginning(text: string, cells: number): string {
  if (oneCellEach.test(text)) return text.slice(0, Math.max(0, cells));
  let kept = "";
  let room = cells;
  for (const character of text) {
    room -= cellsOfCharacter(character);
    if (room < 0) break;
    kept += character;
  }
  return kept;
}

/** Returns the longest end that takes at most this many cells, with whole characters. */
export function ending(text: string, cells: number): string {
  let end = text;
  if (oneCellEach.test(text)) return text.slice(Math.max(0, text.length - Math.max(0, cells)));
  let excess = cellsOf(text) - Math.max(0, cells);
  for (const character of text) {
    if (excess <= 0) break;
    excess -= cellsOfCharacter(character);
    end = end.slice(character.length);
  }
  return end;
}
