// Describes the machine, or the folder with a root file system, that isulad-ts is installed into.
import { statSync } from "node:fs";
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import { failureOutput, run } from "../sys/run.ts";

export type Target = {
  /** Prefix of every path; "" for this machine. */
  root: string;
  /** Actions are reported, and not done. */
  isDryRun: boolean;
  /** Takes a line for the user. */
  report: (line: string) => void;
  /** Runs a program of this machine and returns its output. @throws CriError if it fails. */
  command: (argv: string[], env?: Record<string, string>) => Promise<string>;
};

const commandMs = 10 * 60_000;

export async function command(argv: string[], env: Record<string, string> = {}): Promise<string> {
  const result = await run(argv, {
    signal: AbortSignal.timeout(commandMs),
    env: { ...(process.env as Record<string, string>), ...env },
  });
  if (result.exitCode === 0) return result.stdout;
  throw new CriError("INTERNAL", `${argv.join(" ")}: ${failureOutput(result)}`);
}

/** Reports an action, and does it unless this is a dry run. @param what in the infinitive: "write /etc/a" */
export async function act(
  { isDryRun, report }: Target,
  what: string,
  change: () => void | Promise<void>,
): Promise<void> {
  report(isDryRun ? `would ${what}` : what);
  if (!isDryRun) await change();
}

type Root = Pick<Target, "root">;

export function exists({ root }: Root, path: string): boolean {
  return statSync(join(root, path), { throwIfNoEntry: false }) !== undefined;
}

/** True where systemd runs this machine; never for a folder. */
export function systemdRuns(target: Root): boolean {
  return target.root === "" && exists(target, "/run/systemd/system");
}

export function hasSystemd(target: Root): boolean {
  const places = ["/run/systemd/system", "/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
  return places.some((path) => exists(target, path));
}
