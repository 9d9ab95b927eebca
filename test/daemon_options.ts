// Describes the options of a test's daemon, and refuses those that fail on a slow machine.

export type DaemonOptions = {
  /** Additional keys of daemon.json. */
  config?: Record<string, unknown>;
  flags?: string[];
  /** Additional environment variables. */
  env?: Record<string, string>;
  /** false: the CNI folder starts empty. */
  network?: boolean;
  /** false: no image is loaded. */
  image?: boolean;
  /** Another build than the one under test, with the same file name. */
  executable?: string;
  /** true: it has a session of its own, as a service has. */
  detached?: boolean;
};

/**
 * Refuses limits under 5 s for all of a daemon's calls: those that shall succeed may take seconds on a slow machine.
 * @throws Error
 */
export function refuseShortLimits(config: Record<string, unknown> = {}): void {
  for (const [key, value] of Object.entries(config)) {
    const isShort = key.endsWith("-timeout") && /^([0-4](\.\d+)?s|\d+ms)$/.test(String(value));
    if (isShort)
      throw new Error(`${key} ${String(value)}: use Daemon.configured where it shall expire`);
  }
}
