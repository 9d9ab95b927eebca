// What an OCI runtime can do, by its own word: `RUNTIME features` (runtime-spec, features.md; runc ≥ 1.1,
// crun ≥ 1.8). It is asked again when another executable lies at the path: runtimes are upgraded below
// a daemon that goes on.
import { statSync } from "node:fs";
import { messageOf } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import type { RuntimeSupport } from "../spec/spec_inputs.ts";
import { kernelIsAtLeast } from "../sys/kernel_version.ts";
import { run } from "../sys/run.ts";

type Features = {
  ociVersionMax?: string;
  mountOptions?: string[];
  linux?: { mountExtensions?: { idmap?: { enabled?: boolean } } };
};

/** A start, a Status or a RunPodSandbox waits for it. */
const probeMs = 5_000;
/** After a failure; a program that hangs shall not hold up every Status. */
const againMs = 60_000;

const nothing: RuntimeSupport = { recursiveReadOnlyMounts: false, idmapMounts: false };

export class RuntimeFeatures {
  readonly #argv: string[];
  readonly #onProblem: (problem: string) => void;
  #facts = nothing;
  /** Which executable #facts are of. */
  #identity: string | undefined;
  #probing = Promise.resolve();
  /** By performance.now(). */
  #againAt = Number.POSITIVE_INFINITY;

  /** argv: the runtime with its own arguments. */
  constructor(argv: string[], onProblem: (problem: string) => void) {
    this.#argv = argv;
    this.#onProblem = onProblem;
  }

  /** As of the last refresh; nothing, where the runtime cannot be asked. */
  get facts(): RuntimeSupport {
    return this.#facts;
  }

  /** Asks, unless the answer is known or on its way. */
  async refresh(): Promise<void> {
    const identity = identityOf(this.#argv[0]!);
    if (identity !== this.#identity || performance.now() >= this.#againAt) {
      this.#identity = identity;
      this.#againAt = Number.POSITIVE_INFINITY;
      this.#probing = this.#probing.then(() => this.#probe());
    }
    await this.#probing;
  }

  async #probe(): Promise<void> {
    try {
      const signal = AbortSignal.timeout(probeMs);
      const result = await run([...this.#argv, "features"], { signal });
      // A runtime that does not know the word has none of them.
      this.#facts = result.exitCode === 0 ? factsOf(jsonValue(result.stdout) as Features) : nothing;
    } catch (error) {
      this.#facts = nothing;
      this.#againAt = performance.now() + againMs;
      this.#onProblem(`OCI runtime ${this.#argv[0]} cannot be asked: ${messageOf(error)}`);
    }
  }
}

function factsOf(features: Features): RuntimeSupport {
  // Both take mount_setattr(2).
  const kernel = kernelIsAtLeast(5, 12);
  return {
    ociVersion: features.ociVersionMax,
    recursiveReadOnlyMounts: kernel && features.mountOptions?.includes("rro") === true,
    idmapMounts: kernel && features.linux?.mountExtensions?.idmap?.enabled === true,
  };
}

/** Another text for another file, or for a file that was changed; "" for none. */
function identityOf(path: string): string {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  if (found === undefined) return "";
  return [found.dev, found.ino, found.size, found.mtimeNs, found.ctimeNs].join(":");
}
