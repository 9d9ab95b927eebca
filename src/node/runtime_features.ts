// Probes the features of runtimes (runtime-spec, features.md), and probes again when an executable has changed:
// runtimes are upgraded under a running daemon.
import { statSync } from "node:fs";
import { Backoff } from "../base/backoff.ts";
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

/** Status, RunPodSandbox and CreateContainer wait for the probe. */
const probeMs = 5_000;
/** A node that boots may be too busy to answer in time, and a runtime that hangs must not delay every Status. */
const retries = { firstMs: 5_000, maxMs: 60_000 };

export const noSupport: RuntimeSupport = { recursiveReadOnlyMounts: false, idmapMounts: false };

export type FeatureProbe = {
  /** The executables whose features these are. */
  programs: string[];
  /** Names the probe in messages. */
  call: string;
  /** Returns undefined for a runtime that does not tell its features. */
  read: (signal: AbortSignal) => Promise<Features | undefined>;
};

/** Probes an OCI runtime with `RUNTIME features` (runc ≥ 1.1, crun ≥ 1.8). argv: with its configured arguments. */
export function ociProbe(argv: string[]): FeatureProbe {
  const read = async (signal: AbortSignal) => {
    const { exitCode, stdout } = await run([...argv, "features"], { signal });
    return exitCode === 0 ? (jsonValue(stdout) as Features) : undefined;
  };
  return { programs: [argv[0]!], call: `OCI runtime: ${argv.join(" ")} features`, read };
}

export class RuntimeFeatures {
  readonly #probe: FeatureProbe;
  readonly #onProblem: (problem: string) => void;
  #features: RuntimeSupport = noSupport;
  /** Identifies the executables that were probed. */
  #identity: string | undefined;
  #probing = Promise.resolve();
  /** By performance.now(). */
  #retryAtMs = Number.POSITIVE_INFINITY;
  readonly #backoff = new Backoff(retries);

  constructor(probe: FeatureProbe, onProblem: (problem: string) => void) {
    this.#probe = probe;
    this.#onProblem = onProblem;
  }

  /** The features as of the last refresh; none when the probe failed. */
  get support(): RuntimeSupport {
    return this.#features;
  }

  /** Probes the runtime unless the result is known; single-flight. */
  async refresh(): Promise<void> {
    const identity = this.#probe.programs.map(identityOf).join(" ");
    if (identity !== this.#identity || performance.now() >= this.#retryAtMs) {
      this.#identity = identity;
      this.#retryAtMs = Number.POSITIVE_INFINITY;
      this.#probing = this.#probing.then(() => this.#read());
    }
    await this.#probing;
  }

  async #read(): Promise<void> {
    try {
      const features = await this.#probe.read(AbortSignal.timeout(probeMs));
      this.#features = features === undefined ? noSupport : supported(features);
      this.#backoff.succeeded(this.#probe.call);
    } catch (error) {
      const waitMs = this.#backoff.failed(this.#probe.call);
      const retry = `retrying in ${waitMs / 1000} s`;
      const problem = `${this.#probe.call} failed, ${retry}: ${messageOf(error)}`;
      this.#features = { ...noSupport, unknown: problem };
      this.#retryAtMs = performance.now() + waitMs;
      this.#onProblem(problem);
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
