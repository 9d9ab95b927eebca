// Bounds and cleans text from outside: registries, images, plugins, runtimes, clients. A lone surrogate
// throws where text becomes UTF-8 (a gRPC status, a protobuf string), a cut by UTF-16 length makes one,
// and a message without a bound floods logs and headers. Every cut of such text is made here.

const encoder = new TextEncoder();
const ellipsis = "…";
const ellipsisBytes = 3;
const gap = " […] ";
/** What a message shows of a name, a media type or another short text. */
const quotedBytesMax = 200;

/** Well-formed, of at most bytesMax bytes of UTF-8; what is cut off at the end is marked. */
export function clip(text: string, bytesMax: number): string {
  if (fits(text, bytesMax)) return text.toWellFormed();
  return text.slice(0, unitsWithin(text, bytesMax - ellipsisBytes)).toWellFormed() + ellipsis;
}

/** As clip(), but the end is kept: of a program's output the last words say why it failed. */
export function clipStart(text: string, bytesMax: number): string {
  if (fits(text, bytesMax)) return text.toWellFormed();
  return ellipsis + endWithin(text, bytesMax - ellipsisBytes);
}

/** As clip(), but beginning and end are kept: who says it, and why. */
export function shorten(text: string, bytesMax: number): string {
  if (fits(text, bytesMax)) return text.toWellFormed();
  const half = Math.floor((bytesMax - Buffer.byteLength(gap)) / 2);
  return text.slice(0, unitsWithin(text, half)).toWellFormed() + gap + endWithin(text, half);
}

/** In quotes, with escapes: for names inside a message. */
export function quoted(text: string, bytesMax = quotedBytesMax): string {
  return JSON.stringify(clip(text, bytesMax));
}

/** Without control characters but newline and tab: they move a terminal's cursor, or end a string. */
export function printable(text: string): string {
  return text
    .toWellFormed()
    .replaceAll("\r\n", "\n")
    .replaceAll(/[^\P{Cc}\n\t]/gu, "\uFFFD");
}

/** A value from JSON or YAML with every string and key well-formed. */
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

/** How many UTF-16 units, whole characters only, these bytes hold. */
function unitsWithin(text: string, bytesMax: number): number {
  return encoder.encodeInto(text, new Uint8Array(Math.max(0, bytesMax))).read;
}

/** The last whole characters that these bytes hold. */
function endWithin(text: string, bytesMax: number): string {
  const bytes = Buffer.from(text.slice(-bytesMax));
  let start = Math.max(0, bytes.length - bytesMax);
  while (start < bytes.length && (bytes[start]! & 0xc0) === 0x80) start++;
  return bytes.toString("utf8", start);
}
