// What happens to a stressed daemon and its monitor: kills, restarts, upgrades, and steps that take long when
// a restart comes. Afterwards everything must go on, with the same monitor where it was not killed.
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

/** Longer than one that runs may be listed CREATED (stress_calls.ts). */
const lifeSeconds = 6;
const calmMs = 500;

export class Disturber {
  readonly #calls: Calls;
  readonly #recorder: Recorder;
  readonly #stage: Stage;
  #serial = 0;
  /** Of the monitors that may be there. */
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

  /** The same as before, unless the plan has killed it. */
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
    // A container that ended amid the kill is listed so by now.
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

  /** Another build of the executable, and a restart: the monitor becomes it, with the same pid. */
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

  /** The same while a container is created for longer than the monitor waits: it stays as it was, and serves. */
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

  /** Returns when the runtime is held creating a container; `ended`: when that has ended. */
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

  /** Started once, whatever is cut off; then it runs as listed, ends with its code, and is told of. */
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
