// Parses the files of a cgroup: single numbers and "key number" lines.
import { readKernelFile } from "../sys/file.ts";

/** Returns the text of a kernel file, or undefined when it does not exist. */
export type Read = (path: string) => string | undefined;

/** Returns a lookup of numbers by key in lines of "key number". */
export function parseKeyed(text: string): (key: string) => bigint | undefined {
  const lines = `\n${text}`;
  return (key) => {
    const at = lines.indexOf(`\n${key} `);
    if (at === -1) return undefined;
    const begin = at + key.length + 2;
    const end = lines.indexOf("\n", begin);
    return parseCount(end === -1 ? lines.slice(begin) : lines.slice(begin, end));
  };
}

/** Returns the number in a file; undefined when the file is missing or says "max" (no limit). */
export function numberIn(path: string, read: Read = readKernelFile): bigint | undefined {
  const text = read(path);
  return text === undefined ? undefined : parseCount(text.trimEnd());
}

function parseCount(text: string): bigint | undefined {
  return /^\d{1,20}$/.test(text) ? BigInt(text) : undefined;
}

/** v1 expresses "no limit" as the largest number of pages, which differs between architectures. */
const unlimitedMin = 1n << 62n;

/** Returns a v1 limit, or undefined when it means "no limit". */
export function finiteLimit(limit: bigint | undefined): bigint | undefined {
  return limit === undefined || limit >= unlimitedMin ? undefined : limit;
}
