// Bounds an error's message for a gRPC status, whose text is percent-encoded in a header.
import { clip, clipStart, cutMark, printable } from "./text.ts";

/**
 * Limit of the encoded text. gRPC clients refuse more than 8 KiB of headers, and may close the connection
 * with all its calls; the difference is for the status's other headers.
 */
export const encodedBytesMax = 7_680;

/** Returns printable, bounded text that keeps beginning and end, like shorten(). */
export function statusText(message: string): string {
  const text = printable(message);
  if (text.length <= encodedBytesMax && encodeURI(text).length <= encodedBytesMax) return text;
  const half = (encodedBytesMax - encodeURI(cutMark).length) / 2;
  const begin = within(Array.from(clip(text, encodedBytesMax)), half);
  const end = within(Array.from(clipStart(text, encodedBytesMax)).toReversed(), half);
  return begin.join("") + cutMark + end.toReversed().join("");
}

/** Returns the first characters that fit the encoded bytes. */
function within(characters: string[], bytesMax: number): string[] {
  let bytes = 0;
  const end = characters.findIndex((one) => (bytes += encodeURI(one).length) > bytesMax);
  return end < 0 ? characters : characters.slice(0, end);
}
