// Gives daemon and monitor options of their engine (Bun: JavaScriptCore and mimalloc), which reads them only
// from its environment and only at its start: the process starts itself once more, with them.
//
// Decision: the engine's defaults suit programs that compute. Daemon and monitor wait for calls: with 15 probed
// pods, the default's compiler and scavenger threads used a fifth of the CPU time of both processes, and their
// garbage stayed. A second start takes 5 ms; options in a wrapper script or in the unit would be missing when the
// executable is started by hand.
import process from "node:process";
import { build } from "../base/build.ts";
import { readKernelFile } from "./file.ts";
import { execve } from "./wait.ts";

/** 30 by default: a registry whose address has changed would not be found for so long. */
const ofAddresses = { BUN_CONFIG_DNS_TIME_TO_LIVE_SECONDS: "1" };
const options: Readonly<Record<string, string>> = {
  // The scavenger thread walks the heap each 0.1 s by default, however little was freed.
  MIMALLOC_PURGE_DELAY: "1000",
  MIMALLOC_PURGE_HOLES_MIN_INTERVAL: "5000",
  // Returns free pages also after the small collections that probes and lists cause.
  BUN_JSC_decommitUnusedMarkedBlockPagesAfterEdenCollections: "true",
  // Half of the default: what the heap may grow to before the first full collection.
  BUN_JSC_largeHeapSize: String(4 << 20),
  // Six times the default: only loops such as those of the log threads are worth the optimizing compiler. Three times
  // the default would cost 3 MiB of private memory; ten times saves no more, and makes calls such as Status slower.
  BUN_JSC_thresholdForOptimizeAfterWarmUp: "6000",
  BUN_JSC_thresholdForOptimizeAfterLongWarmUp: "6000",
  BUN_JSC_thresholdForOptimizeSoon: "6000",
  ...ofAddresses,
};
/** Set for the second start, so that there is no third. */
const marker = "ISULAD_ENGINE_OPTIONS";

/** Adds the options for another start of daemon or monitor by this process; options that are set keep their values. */
export function withEngineOptions(env: Readonly<NodeJS.ProcessEnv>): NodeJS.ProcessEnv {
  return { ...options, ...env, [marker]: "set" };
}

/** Adds the option that a helper needs which asks registries; it calls removeEngineOptions(). */
export function withAddressOption(env: Readonly<NodeJS.ProcessEnv>): NodeJS.ProcessEnv {
  return { ...ofAddresses, ...env };
}

/**
 * Starts this process again with the engine's options, and returns in the second start. Neither the options nor
 * the marker are left to children. Inherited descriptors, standard streams aside, are lost: at its start the
 * engine marks all close-on-exec.
 */
export function restartWithEngineOptions(): void {
  const { env } = process;
  if (build === undefined || env[marker] !== undefined) return removeEngineOptions();
  const argv = readKernelFile("/proc/self/cmdline")?.split("\0").slice(0, -1);
  if (argv === undefined || argv.length === 0) return;
  try {
    execve(process.execPath, argv, withEngineOptions(env));
  } catch {
    // The executable was just replaced or removed: the engine's defaults do as well.
  }
}

/** Keeps the options from this process's children. */
export function removeEngineOptions(): void {
  for (const name of [...Object.keys(options), marker]) delete process.env[name];
}
