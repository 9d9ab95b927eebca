// Shapes an error's message into the text of a gRPC status, which travels percent-encoded in a header.
import { clip, clipStart, printable } from "./text.ts";

/**
 * Of the encoded text. gRPC clients refuse headers of 8 KiB in all, and a longer one may end the
 * connection, with everybody's calls on it; the rest is for the status's other headers.
 */
export const encodedBytesMax = 7_680;
const gap = " […] ";

/** Printable and bounded; beginning and end are kept, as by shorten(). */
export function statusText(message: string): string {
  const text = printable(message);
  if (text.length <= encodedBytesMax && encodeURI(text).length <= encodedBytesMax) return text;
  const half = (encodedBytesMax - encodeURI(gap).length) / 2;
  const begin = within(Array.from(clip(text, encodedBytesMax)), half);
  const end = within(Array.from(clipStart(text, encodedBytesMax)).toReversed(), half);
  return begin.join("") + gap + end.toReversed().join("");
}

/** The first characters that take no more than these bytes, encoded. */
function within(characters: string[], bytesMax: number): string[] {
  let bytes = 0;
  const end = characters.findIndex((one) => (bytes += encodeURI(one).length) > bytesMax);
  return end < 0 ? characters : characters.slice(0, end);
}
