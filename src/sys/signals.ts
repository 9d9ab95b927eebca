// Parses signals by the names that images and CRI use.
import { constants } from "node:os";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";

/** The first real-time signal for programs; glibc and musl use the ones below. */
const SIGRTMIN = 34;
const SIGRTMAX = 64;

export function isSignal(name: string): boolean {
  return numberOf(name) !== undefined;
}

/** Parses "SIGTERM", "term", "15", "SIGRTMIN+3" or CRI's "SIGRTMINPLUS3". @throws CriError INVALID_ARGUMENT. */
export function signalNumber(name: string): number {
  const number = numberOf(name);
  if (number !== undefined) return number;
  throw new CriError("INVALID_ARGUMENT", `${quoted(name)} is not a signal`);
}

function numberOf(name: string): number | undefined {
  const upper = name.toUpperCase().replace(/^(?!SIG|\d)/, "SIG");
  const signals: Record<string, number | undefined> = constants.signals;
  const known = upper === "SIGCLD" ? signals["SIGCHLD"] : signals[upper];
  const realTime = /^SIGRT(MIN|MAX)(?:(?:\+|PLUS|-|MINUS)(\d+))?$/.exec(upper);
  let number = known ?? (/^\d+$/.test(upper) ? Number(upper) : 0);
  if (realTime !== null) {
    const offset = Number(realTime[2] ?? 0);
    number = realTime[1] === "MIN" ? SIGRTMIN + offset : SIGRTMAX - offset;
  }
  return number >= 1 && number <= SIGRTMAX ? number : undefined;
}
