// Probes the features of an OCI runtime with `RUNTIME features` (runtime-spec, features.md; runc ≥ 1.1,
// crun ≥ 1.8), again when the executable has changed: runtimes are upgraded under a running daemon.
import { statSync } from "node:fs";
import { messageOf } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import type { RuntimeSupport } from "../spec/spec_inputs.ts";
import { kernelIsAtLeast } from "../sys/kernel_version.ts";
import { run } from "../sys/run.ts";

export type Features = {
  ociVersionMax?: string;
  mountOptions?: string[];
  linux?: { mountExtensions?: { idmap?: { enabled?: boolean } } };
};

/** Status, RunPodSandbox and the daemon's start wait for the probe. */
const probeMs = 5_000;
/** Retry interval after a failure, so that a hanging runtime does not delay every Status. */
const retryMs = 60_000;

const none: RuntimeSupport = { recursiveReadOnlyMounts: false, idmapMounts: false };

export class RuntimeFeatures {
  readonly #argv: string[];
  readonly #onProblem: (problem: string) => void;
  #features = none;
  /** Identifies the executable that was probed. */
  #identity: string | undefined;
  #probing = Promise.resolve();
  /** By performance.now(). */
  #retryAtMs = Number.POSITIVE_INFINITY;

  /** argv: the runtime with its configured arguments. */
  constructor(argv: string[], onProblem: (problem: string) => void) {
    this.#argv = argv;
    this.#onProblem = onProblem;
  }

  /** The features as of the last refresh; none when the probe failed. */
  get support(): RuntimeSupport {
    return this.#features;
  }

  /** Probes the runtime unless the result is known; single-flight. */
  async refresh(): Promise<void> {
    const identity = identityOf(this.#argv[0]!);
    if (identity !== this.#identity || performance.now() >= this.#retryAtMs) {
      this.#identity = identity;
      this.#retryAtMs = Number.POSITIVE_INFINITY;
      this.#probing = this.#probing.then(() => this.#probe());
    }
    await this.#probing;
  }

  async #probe(): Promise<void> {
    try {
      const options = { signal: AbortSignal.timeout(probeMs) };
      const { exitCode, stdout } = await run([...this.#argv, "features"], options);
      // A runtime without the verb supports none of the features.
      this.#features = exitCode === 0 ? supported(jsonValue(stdout) as Features) : none;
    } catch (error) {
      this.#features = none;
      this.#retryAtMs = performance.now() + retryMs;
      const retry = `retrying in ${retryMs / 1000} s`;
      const call = `${this.#argv.join(" ")} features`;
      this.#onProblem(`OCI runtime: ${call} failed, ${retry}: ${messageOf(error)}`);
    }
  }
}

/** @param kernel whether the kernel has mount_setattr(2), which both mount features need. */
export function supported(features: Features, kernel = kernelIsAtLeast(5, 12)): RuntimeSupport {
  return {
    ociVersion: features.ociVersionMax,
    recursiveReadOnlyMounts: kernel && features.mountOptions?.includes("rro") === true,
    idmapMounts: kernel && features.linux?.mountExtensions?.idmap?.enabled === true,
  };
}

/** Returns a text that differs for another or a changed file; "" for a missing one. */
function identityOf(path: string): string {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  if (found === undefined) return "";
  return [found.dev, found.ino, found.size, found.mtimeNs, found.ctimeNs].join(":");
}
