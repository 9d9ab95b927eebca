// Disturbs a stressed daemon and its monitor: kills, restarts, upgrades, and steps that are slow when a
// restart comes. Afterwards everything must go on, with the same monitor unless it was killed.
import { setTimeout as sleep } from "node:timers/promises";
import type { Recorder } from "./event_recorder.ts";
import { until } from "./expect.ts";
import { end } from "./host.ts";
import { AddedText } from "./log_text.ts";
import type { Calls } from "./stress_calls.ts";
import { runtimeCallsOf } from "./stress_node.ts";
import type { Stage } from "./stress_loads.ts";

export const disturbances = {
  "daemon killed": (disturber: Disturber) => disturber.restart("SIGKILL"),
  "daemon restarted": (disturber: Disturber) => disturber.restart("SIGTERM"),
  "monitor killed": (disturber: Disturber) => disturber.killMonitor(),
  "both killed": (disturber: Disturber) => disturber.killBoth(),
  "monitor upgraded": (disturber: Disturber) => disturber.upgrade(),
  "upgrade timed out": (disturber: Disturber) => disturber.lateUpgrade(),
  "daemon killed in a slow start": (disturber: Disturber) => disturber.slowStart("SIGKILL"),
  "daemon restarted in a slow start": (disturber: Disturber) => disturber.slowStart("SIGTERM"),
};
export type Disturbance = keyof typeof disturbances;

/** Exceeds the limit until a running container is listed RUNNING (stress_calls.ts). */
const lifeSeconds = 6;
const calmMs = 500;

export class Disturber {
  readonly #calls: Calls;
  readonly #recorder: Recorder;
  readonly #stage: Stage;
  #serial = 0;
  /** Pids of acceptable monitors. */
  #monitors: number[];

  constructor(stage: Stage, recorder: Recorder) {
    this.#stage = stage;
    this.#calls = stage.calls;
    this.#recorder = recorder;
    this.#monitors = this.#calls.daemon.monitors();
  }

  async run(name: Disturbance): Promise<void> {
    this.checkMonitor();
    await disturbances[name](this);
    const { disturbances: done } = this.#calls.tally;
    done[name] = (done[name] ?? 0) + 1;
    this.checkMonitor();
  }

  /** Checks that the monitor is the same, unless the plan killed it. */
  checkMonitor(): void {
    const now = this.#calls.daemon.monitors();
    if (now.join() === this.#monitors.join()) return;
    this.#calls.fault("monitor", `monitor ${this.#monitors.join()} became ${now.join()}`);
    this.#monitors = now;
  }

  async #startDaemon(): Promise<void> {
    await this.#calls.daemon.start();
    await this.#recorder.connect();
  }

  restart(signal: "SIGKILL" | "SIGTERM"): Promise<void> {
    const act = async () => {
      await this.#calls.daemon.stop(signal);
      await this.#startDaemon();
    };
    return this.#calls.disturbed(act, { hold: true });
  }

  killMonitor(): Promise<void> {
    return this.#calls.disturbed(() => this.#endMonitor(), { hold: false });
  }

  killBoth(): Promise<void> {
    const act = async () => {
      this.#calls.bothKills++;
      const ended = this.#endMonitor();
      await this.#calls.daemon.stop("SIGKILL");
      await this.#startDaemon();
      await ended;
      this.#calls.bothKills++;
    };
    return this.#calls.disturbed(act, { hold: true });
  }

  async #endMonitor(): Promise<void> {
    const calls = this.#calls;
    calls.monitorKills++;
    const before = calls.daemon.monitors();
    before.forEach(end);
    await until("another monitor serves", async () => {
      const now = calls.daemon.monitors();
      return now.length === 1 && !before.includes(now[0]!) && (await this.#answers());
    });
    this.#monitors = calls.daemon.monitors();
    // By now a container that ended during the kill is listed as exited.
    calls.monitorKills++;
  }

  async #answers(): Promise<boolean> {
    try {
      const { id } = this.#stage.targets[0]!;
      return (await this.#calls.daemon.exec(id, "true", 5)).exitCode === 0;
    } catch {
      return false;
    }
  }

  /** Installs another build and restarts: the monitor changes to it and keeps its pid. */
  async upgrade(): Promise<void> {
    const { node, daemon } = this.#calls;
    const log = new AddedText(daemon.logFile);
    node.install();
    await this.restart("SIGTERM");
    const stays = () => log.text.includes("the monitor was not upgraded");
    const became = () => daemon.monitors().some((pid) => node.isCurrent(pid));
    await until("the monitor is upgraded", () => became() || stays());
    if (stays())
      this.#calls.fault("monitor", `not upgraded: ${lineWith(log.text, "was not upgraded")}`);
  }

  /** Upgrades while a creation takes longer than the monitor waits: the old monitor stays and serves. */
  async lateUpgrade(): Promise<void> {
    const { node, daemon } = this.#calls;
    const log = new AddedText(daemon.logFile);
    const { ended } = await this.#beginSlowStart();
    node.install();
    await this.restart("SIGKILL");
    const decided = () => /the monitor was not upgraded/.test(log.text);
    await until("the upgrade has timed out", decided);
    node.sleep("create", 0);
    await ended;
  }

  async slowStart(signal: "SIGKILL" | "SIGTERM"): Promise<void> {
    const { ended } = await this.#beginSlowStart();
    await this.restart(signal);
    await sleep(calmMs);
    this.#calls.node.sleep("create", 0);
    await ended;
  }

  /** Returns once the runtime hangs in a creation; `ended`: resolves when the creation ends. */
  async #beginSlowStart(): Promise<{ ended: Promise<void> }> {
    const { node } = this.#calls;
    const key = `slow-start-${++this.#serial}`;
    node.sleep("create", "held");
    const ended = this.#slowLife(key).catch((error: unknown) => this.#calls.failed(key, error));
    await until("a container is created slowly", async () => {
      const id = await this.#idOf(key);
      return id !== undefined && runtimeCallsOf(id).length > 0;
    });
    return { ended };
  }

  async #idOf(key: string): Promise<string | undefined> {
    const filter = { label_selector: { stress: key } };
    const { containers } = await this.#calls.daemon.client.ListContainers({ filter });
    return containers[0]?.id ?? undefined;
  }

  /**
   * Checks that an interrupted start runs once, is listed, exits with its code, and is reported by an event.
   */
  async #slowLife(key: string): Promise<void> {
    const calls = this.#calls;
    const wish = {
      key,
      pod: this.#stage.slowPod,
      command: `echo up; sleep ${lifeSeconds}; exit 77`,
    };
    const started = await calls.start(wish);
    if ((await calls.ended(started, 77)) === undefined) return;
    calls.log(started, { stdout: "up\n", stderr: "" });
    await calls.remove(started.id);
  }
}

function lineWith(text: string, words: string): string {
  return text.split("\n").find((line) => line.includes(words)) ?? "";
}
