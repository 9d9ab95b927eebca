// Recognizes a descriptor that systemd's journal reads, by $JOURNAL_STREAM (systemd.exec(5)).
import { fstatSync } from "node:fs";

const standardError = 2;

/** The variable is inherited by processes whose output goes elsewhere: the descriptor must be the one it names. */
export function isJournal(
  env: Readonly<Record<string, string | undefined>>,
  fd = standardError,
): boolean {
  const stream = env["JOURNAL_STREAM"];
  if (!stream) return false;
  try {
    const { dev, ino } = fstatSync(fd, { bigint: true });
    return stream === `${dev}:${ino}`;
  } catch {
    return false; // it is closed
  }
}
