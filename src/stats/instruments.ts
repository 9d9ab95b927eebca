// Counts the daemon's own calls, pulls and OOM kills for the Prometheus metrics of metrics-port.
import { build, version } from "../base/build.ts";
import { codeOf } from "../base/errors.ts";
import { nowMs } from "../base/clock.ts";
import { LoopLag } from "./loop_lag.ts";
import { Counter, type Family, gauge, Histogram } from "./prometheus.ts";

/** In seconds. */
const lagBounds = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5];

export class Instruments {
  readonly #calls = new Counter("isulad_calls_total", "Answered calls by method and gRPC code");
  readonly #seconds = new Histogram("isulad_call_seconds", "How long a call took, by method");
  readonly #pulls = new Counter("isulad_image_pulls_total", "Image pulls by gRPC code");
  readonly #oomKills = new Counter("isulad_oom_kills_total", "Containers that ended OOMKilled");
  readonly #lag = new Histogram(
    "isulad_loop_lag_seconds",
    "How late the daemon's loop turned, while images were pulled",
    lagBounds,
  );
  readonly #loop = new LoopLag((lateMs) => this.#lag.observe({}, lateMs / 1000));
  readonly #startedS = Math.floor(nowMs() / 1000);

  constructor() {
    this.#oomKills.add({}, 0); // exports 0 before the first kill
  }

  /** method: an existing one, to bound the labels; code: of the gRPC status. */
  called(method: string, code: string, ms: number): void {
    this.#calls.add({ method, code });
    this.#seconds.observe({ method }, ms / 1000);
  }

  oomKilled(): void {
    this.#oomKills.add();
  }

  /** Counts a pull's result and measures the loop lag during it. */
  async pull<T>(pull: Promise<T>): Promise<T> {
    using _ = this.#loop.watch();
    try {
      const result = await pull;
      this.#pulls.add({ code: "OK" });
      return result;
    } catch (error) {
      this.#pulls.add({ code: codeOf(error) });
      throw error;
    }
  }

  families(): Family[] {
    const started = { labels: {}, value: this.#startedS };
    const info = { labels: { version, commit: build?.commit ?? "none" }, value: 1 };
    return [
      this.#calls.family(),
      this.#seconds.family(),
      this.#lag.family(),
      this.#pulls.family(),
      this.#oomKills.family(),
      gauge("isulad_start_time_seconds", "When the daemon started, since the epoch", [started]),
      gauge("isulad_build_info", "Which build this is", [info]),
    ];
  }
}
