// Counts the daemon's pulls, OOM kills and activities for the Prometheus metrics of metrics-port.
import { build, version } from "../base/build.ts";
import { codeOf } from "../base/errors.ts";
import { ActivityMetrics } from "./activity_metrics.ts";
import { LoopLag } from "./loop_lag.ts";
import { newCounter, newHistogram, readings } from "./own_metrics.ts";
import type { Family } from "./prometheus.ts";
import { processFamilies } from "./process_metrics.ts";

/** Upper bounds of the buckets of loop lag, in seconds. */
const lagBounds = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5];

export class Instruments implements Disposable {
  readonly #pulls = newCounter("isulad_image_pulls_total");
  readonly #pullSeconds = newHistogram("isulad_image_pull_duration_seconds");
  readonly #oomKills = newCounter("isulad_oom_kills_total");
  readonly #lag = newHistogram("isulad_loop_lag_seconds", lagBounds);
  readonly #loop = new LoopLag((lateMs) => this.#lag.observe({}, lateMs / 1000));
  readonly #activities = new ActivityMetrics();

  constructor() {
    this.#oomKills.add({}, 0); // exports 0 before the first kill
  }

  oomKilled(): void {
    this.#oomKills.add();
  }

  /** Counts a pull's result and measures the loop lag during it. */
  async pull<T>(pull: Promise<T>): Promise<T> {
    using _ = this.#loop.watch();
    const beganMs = performance.now();
    try {
      const result = await pull;
      this.#pulls.add({ code: "OK" });
      return result;
    } catch (error) {
      this.#pulls.add({ code: codeOf(error) });
      throw error;
    } finally {
      this.#pullSeconds.observe({}, (performance.now() - beganMs) / 1000);
    }
  }

  families(): Family[] {
    const labels = { version, commit: build?.commit ?? "none" };
    return [
      this.#lag.family(),
      this.#pulls.family(),
      this.#pullSeconds.family(),
      this.#oomKills.family(),
      ...this.#activities.families(),
      ...processFamilies(),
      readings("isulad_build_info", [{ labels, value: 1 }]),
    ];
  }

  [Symbol.dispose](): void {
    this.#activities[Symbol.dispose]();
  }
}
