// What the daemon counts of itself, for the Prometheus metrics of metrics-port.
import { build, version } from "../base/build.ts";
import { codeOf } from "../base/errors.ts";
import { Counter, exposition, type Family, Histogram } from "../base/prometheus.ts";
import { residentBytes } from "../sys/process.ts";
import type { Context } from "./context.ts";

export class Instruments {
  readonly #calls = new Counter("isulad_calls_total", "Answered calls by method and gRPC code");
  readonly #seconds = new Histogram("isulad_call_seconds", "How long a call took, by method");
  readonly #pulls = new Counter("isulad_image_pulls_total", "Image pulls by gRPC code");
  readonly #oomKills = new Counter("isulad_oom_kills_total", "Containers that ended OOMKilled");
  readonly #startedS = Math.floor(Date.now() / 1000);

  constructor() {
    this.#oomKills.add({}, 0); // so that it is there before the first one
  }

  /** method: one that is served; code: of a gRPC status. */
  called(method: string, code: string, ms: number): void {
    this.#calls.add({ method, code });
    this.#seconds.observe({ method }, ms / 1000);
  }

  oomKilled(): void {
    this.#oomKills.add();
  }

  /** Counts a pull's end, whichever it is. */
  async pull<T>(pull: Promise<T>): Promise<T> {
    try {
      const result = await pull;
      this.#pulls.add({ code: "OK" });
      return result;
    } catch (error) {
      this.#pulls.add({ code: codeOf(error) });
      throw error;
    }
  }

  /** All of it, and what is there now, in Prometheus' text format. */
  text(context: Context): string {
    return exposition([
      this.#calls.family(),
      this.#seconds.family(),
      this.#pulls.family(),
      this.#oomKills.family(),
      ...stateFamilies(context),
      monitorRestarts(context),
      memory(context),
      gauge("isulad_start_time_seconds", "When the daemon started, since the epoch", [
        { labels: {}, value: this.#startedS },
      ]),
      gauge("isulad_build_info", "Which build this is", [
        { labels: { version, commit: build?.commit ?? "none" }, value: 1 },
      ]),
    ]);
  }
}

function gauge(name: string, help: string, samples: Family["samples"]): Family {
  return { name, help, type: "gauge", samples };
}

function stateFamilies(context: Context): Family[] {
  const { sandboxes, containers, images } = context;
  const pods = byPhase(sandboxes.list(), ["ready", "notready"]);
  const running = byPhase(containers.list(), ["created", "running", "exited"]);
  const list = [{ labels: {}, value: images.list().length }];
  const layers = [{ labels: {}, value: images.usedBytes() }];
  return [
    gauge("isulad_pods", "Pods by state", pods),
    gauge("isulad_containers", "Containers by state", running),
    gauge("isulad_images", "Images", list),
    gauge("isulad_image_bytes", "Bytes of all layers, each counted once", layers),
  ];
}

function byPhase(records: { phase: { phase: string } }[], phases: string[]): Family["samples"] {
  return phases.map((state) => ({
    labels: { state },
    value: records.filter(({ phase }) => phase.phase === state).length,
  }));
}

function monitorRestarts({ monitor }: Context): Family {
  const name = "isulad_monitor_restarts_total";
  const help = "How often the monitor was gone and another one was found or started";
  return { name, help, type: "counter", samples: [{ labels: {}, value: monitor.losses }] };
}

function memory({ monitor }: Context): Family {
  const processes = { daemon: process.pid, monitor: monitor.pid };
  const samples = Object.entries(processes).flatMap(([process, pid]) => {
    const value = pid === undefined ? undefined : residentBytes(pid);
    return value === undefined ? [] : [{ labels: { process }, value }];
  });
  return gauge("isulad_resident_memory_bytes", "Resident memory of our processes", samples);
}
