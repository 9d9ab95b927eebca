// Defines what the tables of keys of daemon.json consist of.
import * as k from "./config_values.ts";

export type Key<Output = unknown> = {
  key: string;
  kind: k.Kind<Output>;
  fallback: Output;
  about: string;
  /** Other spellings, in addition to "_" for "-". */
  also: readonly string[];
  /** A reload applies a change; other keys need a restart. */
  live: boolean;
  /** What a changed value does beside its effect, at the restart; a reload warns of it. */
  restartEffect?: string;
};

/** Returns a key with its defaults. */
export function key<Output>(
  name: string,
  kind: k.Kind<Output>,
  fallback: NoInfer<Output>,
  rest: { about: string; also?: readonly string[]; live?: true; restartEffect?: string },
): Key<Output> {
  return { key: name, kind, fallback, also: [], live: false, ...rest };
}

export const secondMs = 1000;
export const minuteMs = 60 * secondMs;
/** Durations of at least a second. */
export const seconds = k.duration(secondMs);
