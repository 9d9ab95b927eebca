// Reads files that people write: daemon.json, hosts.toml, certificates, credentials, plugins' configurations.
import { readFileSync, statSync, type Stats } from "node:fs";
import { errnoOf } from "./errors.ts";

const bytesMax = 1024 * 1024;

/**
 * Reads a regular file of at most 1 MiB. Checks type and size first: to read a FIFO would block, and to read a large
 * file would fill the memory.
 * @throws for any other file, and the errors of stat(2), open(2) and read(2).
 */
export function readSettingsBytes(path: string): Uint8Array {
  const stat = statSync(path);
  if (!stat.isFile()) throw new Error(`${path} is ${kindOf(stat)}, not a regular file`);
  const bytes = stat.size > bytesMax ? undefined : readFileSync(path);
  // Some kernel files have no size, but content.
  if (bytes === undefined || bytes.length > bytesMax)
    throw new Error(`${path} is larger than ${bytesMax} bytes`);
  return bytes;
}

function kindOf(stat: Stats): string {
  if (stat.isDirectory()) return "a folder";
  if (stat.isFIFO()) return "a FIFO";
  return stat.isSocket() ? "a socket" : "a device";
}

/**
 * As readSettingsBytes(), as text. fatal: bytes that are not UTF-8 are refused instead of replaced.
 * @throws also for what is not UTF-8.
 */
export function readSettings(path: string, { fatal = true } = {}): string {
  const bytes = readSettingsBytes(path);
  try {
    return new TextDecoder("utf-8", { fatal }).decode(bytes);
  } catch (error) {
    throw new Error(`${path} is not UTF-8`, { cause: error });
  }
}

/** As readSettings(); undefined where there is no such file. */
export function readSettingsIfExists(path: string): string | undefined {
  try {
    return readSettings(path);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}
