// Kills shims while the containers of several pods write numbered lines and others end with every exit code: `bun
// test/shim_storm.ts [--kills 20] [--pods 4] [--burst 40] [--seed 1]`, with the newest of runc's shims that
// test/shims has built. A killed shim's containers must end with the code that it still reported, or with 137 and
// the reason; of their lines, no more may be lost than a pipe and the shim's buffer hold. Containers of other pods
// lose nothing, and nothing is left at the end.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { toLong } from "../src/base/int64.ts";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { readShimFile } from "../src/shim/shim_file.ts";
import { type Daemon, startDaemon } from "./harness.ts";
import { end } from "./host.ts";
import { logText } from "./log_text.ts";
import { random } from "./random.ts";
import { chosenRuncShim, runcHandler, shimSockets } from "./shim_programs.ts";
import { countExit, countLines, type Ended, newTally, type Tally, writerScript } from "./storm.ts";

type ShimStormPlan = { kills: number; pods: number; burst: number; seed: number };
type Writer = { id: string; progress: string };
type Pod = { id: string; config: PodSandboxConfig; writers: Writer[] };

const writersPerPod = 2;
/** Containers of the killed shim's pod that end around the kill. */
const endingAtOnce = 4;
/** Bytes that a killed shim can lose of a stream: a full pipe, and the buffer of its copying goroutine. */
const lossBytesMax = (64 + 32) << 10;
/** Checks how a container of a killed shim ended; code: its own, undefined for one that would not have ended. */
export function countKilled(
  code: number | undefined,
  told: Ended,
  tally: Tally,
  who: string,
): void {
  const isKilled = told.exitCode === 137 && told.message.includes("its shim has ended");
  if (code !== undefined && !isKilled) return countExit(code, told, tally, who);
  tally.exits++;
  if (isKilled) return;
  tally.wrongCodes++;
  tally.problems.push(`${who}: ended with ${told.exitCode}, ${told.reason}: ${told.message}`);
}

/** Checks that a killed writer's log is 1, 2, …, the last perhaps cut, and lost at most lossBytesMax of `written`. */
export function countKilledLog(log: string, written: number, tally: Tally, who: string): void {
  const lines = logText(log).split("\n");
  const cut = lines.pop()!;
  const wrong = lines.findIndex((line, index) => line !== String(index + 1));
  tally.lines += lines.length;
  if (wrong !== -1) tally.problems.push(`${who}: line ${wrong + 1} is ${lines[wrong]}`);
  if (!String(lines.length + 1).startsWith(cut)) tally.problems.push(`${who}: ends with ${cut}`);
  let lostBytes = 0;
  for (let line = lines.length + 1; line <= written; line++) lostBytes += String(line).length + 1;
  if (lostBytes > lossBytesMax) tally.problems.push(`${who}: ${lostBytes} bytes lost at its end`);
}

class ShimStorm {
  readonly #daemon: Daemon;
  readonly #plan: ShimStormPlan;
  readonly #draw: () => number;
  readonly tally = newTally();
  readonly #pods: Pod[] = [];
  readonly #progress: string;
  #serial = 0;
  #nextCode = 0;

  constructor(daemon: Daemon, plan: ShimStormPlan) {
    this.#daemon = daemon;
    this.#plan = plan;
    this.#draw = random(plan.seed);
    this.#progress = join(daemon.dir, "progress");
    mkdirSync(this.#progress);
  }

  async run(): Promise<Tally> {
    for (let count = 0; count < this.#plan.pods; count++) this.#pods.push(await this.#startPod());
    for (let count = 0; count < this.#plan.kills; count++) {
      const index = Math.floor(this.#draw() * this.#pods.length);
      await this.#kill(this.#pods[index]!);
      this.#pods[index] = await this.#startPod();
    }
    await sleep(500);
    await Promise.all(this.#pods.map((pod) => this.#finish(pod)));
    return this.tally;
  }

  async #startPod(): Promise<Pod> {
    const config = this.#daemon.hostPodConfig();
    const pod: Pod = { id: await this.#daemon.runPod(config), config, writers: [] };
    for (let count = 0; count < writersPerPod; count++) {
      const name = `writer-${this.#serial++}`;
      const script = writerScript(this.#plan.burst, `/progress/${name}`);
      const mounts = [{ host_path: this.#progress, container_path: "/progress" }];
      const id = await this.#daemon.run(pod.id, config, script, { mounts });
      pod.writers.push({ id, progress: join(this.#progress, name) });
    }
    return pod;
  }

  async #startEnding(pod: Pod, ms: number): Promise<{ id: string; code: number }> {
    const code = this.#nextCode++ % 256;
    const script = `usleep ${Math.floor(ms * 1000)}; exit ${code}`;
    return { id: await this.#daemon.run(pod.id, pod.config, script), code };
  }

  /** Kills a pod's shim, and checks this pod's containers and that all others run. */
  async #kill(pod: Pod): Promise<void> {
    const ended = await this.#startEnding(pod, 0);
    const { exitCode, reason, status } = await this.#daemon.exited(ended.id);
    const told = { exitCode, reason, message: status.message ?? "" };
    countExit(ended.code, told, this.tally, "ended before the kill");
    const ending = [];
    for (let count = 0; count < endingAtOnce; count++)
      ending.push(await this.#startEnding(pod, 200 + this.#draw() * 1000));
    await sleep(this.#draw() * 1000);
    const bundle = join(this.#daemon.dir, "state/monitor/shims", pod.writers[0]!.id);
    end(readShimFile(bundle)!.pid);
    await this.#check(ended.id, ended.code);
    for (const { id, code } of ending) await this.#check(id, code);
    for (const { id, progress } of pod.writers) {
      const path = await this.#check(id, undefined);
      const written = Number(readFileSync(progress, "utf8"));
      countKilledLog(readFileSync(path, "utf8"), written, this.tally, id.slice(0, 12));
    }
    await this.#daemon.removePod(pod.id);
    for (const other of this.#pods) if (other !== pod) await this.#checkRuns(other);
  }

  /** Returns the path of the container's log. */
  async #check(id: string, code: number | undefined): Promise<string> {
    const { exitCode, reason, status } = await this.#daemon.exited(id);
    const told = { exitCode, reason, message: status.message ?? "" };
    countKilled(code, told, this.tally, id.slice(0, 12));
    return status.log_path!;
  }

  async #checkRuns({ writers }: Pod): Promise<void> {
    for (const { id } of writers) {
      const { exitCode, stdout } = await this.#daemon.exec(id, "echo alive");
      if (exitCode === 0 && stdout === "alive\n") continue;
      this.tally.deadContainers++;
      this.tally.problems.push(`${id.slice(0, 12)} of another pod is dead: ${exitCode}, ${stdout}`);
    }
  }

  async #finish({ id: podId, writers }: Pod): Promise<void> {
    for (const { id } of writers) {
      await this.#daemon.client.StopContainer({ container_id: id, timeout: toLong(20) });
      const { exitCode, reason, status } = await this.#daemon.exited(id);
      const who = id.slice(0, 12);
      countExit(0, { exitCode, reason, message: status.message ?? "" }, this.tally, who);
      countLines(readFileSync(status.log_path!, "utf8"), this.tally, who);
    }
    await this.#daemon.removePod(podId);
  }
}

/** Runs a storm, and searches for leaks after it. */
export async function shimStorm(daemon: Daemon, plan: ShimStormPlan): Promise<Tally> {
  const pod = daemon.hostPodConfig();
  const first = await daemon.runPod(pod);
  await daemon.run(first, pod, "true");
  await daemon.removePod(first); // it has made what lasts
  const before = daemon.snapshot();
  const socketsBefore = shimSockets();
  const tally = await new ShimStorm(daemon, plan).run();
  tally.problems.push(...(await daemon.leaksSince(before, 10_000)));
  for (const path of shimSockets().difference(socketsBefore))
    tally.problems.push(`socket: ${path}`);
  return tally;
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      kills: { type: "string", default: "20" },
      pods: { type: "string", default: "4" },
      burst: { type: "string", default: "40" },
      seed: { type: "string", default: "1" },
    },
  });
  const plan: ShimStormPlan = {
    kills: Number(values.kills),
    pods: Number(values.pods),
    burst: Number(values.burst),
    seed: Number(values.seed),
  };
  const version = chosenRuncShim();
  if (version === undefined) throw new Error("no shim is built: run test/shims");
  const config = { runtimes: { shim: runcHandler(version) }, "default-runtime": "shim" };
  await using daemon = await startDaemon({ config });
  const { problems, lines, linesLost, exits, wrongCodes, deadContainers } = await shimStorm(
    daemon,
    plan,
  );
  for (const problem of problems) console.log(`  ${problem}`);
  console.log(
    `shim ${version}, ${plan.kills} kills: ${lines} lines, ${linesLost} lost in other pods; ${exits} exits, ${wrongCodes} wrong; ${deadContainers} dead in other pods; ${problems.length} problems`,
  );
  return problems.length === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
