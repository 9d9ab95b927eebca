// Bounds and cleans untrusted text: from registries, images, plugins, runtimes, clients. All such text is
// cut here: a cut by UTF-16 length can leave a lone surrogate, which throws when encoded as UTF-8 (gRPC status,
// protobuf string), and unbounded text floods logs and headers.

const encoder = new TextEncoder();
const ellipsis = "…";
const ellipsisBytes = 3;
/** Stands for the middle that shorten() cuts out. */
export const cutMark = " […] ";
/** Bounds a name, a media type or another short text in a message. */
const quotedBytesMax = 200;

/** Returns well-formed text of at most bytesMax bytes of UTF-8; an ellipsis marks a cut at the end. */
export function clip(text: string, bytesMax: number): string {
  if (fits(text, bytesMax)) return text.toWellFormed();
  return text.slice(0, unitsWithin(text, bytesMax - ellipsisBytes)).toWellFormed() + ellipsis;
}

/** Like clip(), but keeps the end: a program's last output says why it failed. */
export function clipStart(text: string, bytesMax: number): string {
  if (fits(text, bytesMax)) return text.toWellFormed();
  return ellipsis + endWithin(text, bytesMax - ellipsisBytes);
}

/** Like clip(), but keeps beginning and end: the speaker and the reason. */
export function shorten(text: string, bytesMax: number): string {
  if (fits(text, bytesMax)) return text.toWellFormed();
  const half = Math.floor((bytesMax - Buffer.byteLength(cutMark)) / 2);
  return text.slice(0, unitsWithin(text, half)).toWellFormed() + cutMark + endWithin(text, half);
}

/** Returns text in quotes, with escapes, for names inside a message. */
export function quoted(text: string, bytesMax = quotedBytesMax): string {
  return JSON.stringify(clip(text, bytesMax));
}

/**
 * Replaces the characters that change how other text appears, except newline and tab: controls, which move a terminal's
 * cursor or end a string; format characters (Cf), which are invisible or turn the direction of writing, so that a name
 * looks like another; line and paragraph separators.
 */
export function printable(text: string): string {
  return text
    .toWellFormed()
    .replaceAll("\r\n", "\n")
    .replaceAll(/[^\P{Cc}\n\t]|\p{Cf}|\p{Zl}|\p{Zp}/gu, "\uFFFD");
}

/** Removes all repetitions of a character from the end. */
export function withoutEnding(text: string, character: string): string {
  let end = text.length;
  while (end > 0 && text[end - 1] === character) end--;
  return text.slice(0, end);
}

/** Drops ids, pids and times from a message, which differ with each try. */
export function withoutIds(reason: string): string {
  return reason.replaceAll(/\b[0-9a-f]{12,}\b|\d+/g, "#");
}

/** Makes every string and key of a JSON or YAML value well-formed. */
export function wellFormed(value: unknown): unknown {
  if (typeof value === "string") return value.toWellFormed();
  if (Array.isArray(value)) return value.map(wellFormed);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, part]) => [key.toWellFormed(), wellFormed(part)]),
  );
}

function fits(text: string, bytesMax: number): boolean {
  // No character takes more than three bytes for each of its UTF-16 units.
  return text.length * 3 <= bytesMax || Buffer.byteLength(text) <= bytesMax;
}

/** Returns the UTF-16 units of the whole characters that fit these bytes. */
function unitsWithin(text: string, bytesMax: number): number {
  return encoder.encodeInto(text, new Uint8Array(Math.max(0, bytesMax))).read;
}

/** Returns the last whole characters that fit these bytes. */
function endWithin(text: string, bytesMax: number): string {
  const bytes = Buffer.from(text.slice(-bytesMax));
  let start = Math.max(0, bytes.length - bytesMax);
  while (start < bytes.length && (bytes[start]! & 0xc0) === 0x80) start++;
  return bytes.toString("utf8", start);
}
