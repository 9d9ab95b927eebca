// Measures OOM kills under load: `bun run bench:oom [--kills N] [--others N] [--rounds 30] [--idle 100]`.
// Each OOM kill must be reported as one and nothing else may be, ten at a time, two in a pod. Also measures
// the latency of the reason against a bare exit, and the monitor's CPU time with 100 idle containers. Exits
// with 1 when a figure exceeds its bound. Needs root and the built executable.
import { readFileSync } from "node:fs";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { Poller } from "../../src/sys/poller.ts";
import { openPidfd } from "../../src/sys/wait.ts";
import { cgroupDriver, type Daemon, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";

const atOnce = 10;
const aPod = 2;
const ratioMax = 3;
const idlePercentMax = 0.2;
const idleMs = 20_000;
const endMsMax = 120_000;
const ticksPerS = 100;

const { CONTAINER_STOPPED_EVENT } = runtime.v1.ContainerEventType;
const eater = "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null";
const limited = { linux: { resources: { memory_limit_in_bytes: toLong(20 << 20) } } };

type End = { reason: string; exitCode: number; message: string; atMs: number };
type Life = { script: string; reason: string; exitCode: number; act?: "kill" | "stop" };

/**
 * Cases that must be reported as OOM kills: of the first process, or of another one while the first exits by
 * itself.
 */
const kills: Life[] = [
  { script: `exec ${eater}`, reason: "OOMKilled", exitCode: 137 },
  { script: `${eater}; exit $?`, reason: "OOMKilled", exitCode: 137 },
  { script: `${eater}; exit 7`, reason: "OOMKilled", exitCode: 7 },
];
/** Similar cases that must not be reported as OOM kills. */
const others: Life[] = [
  { script: "exec sleep 600", reason: "Error", exitCode: 137, act: "kill" },
  { script: "exec sleep 600", reason: "Error", exitCode: 137, act: "stop" },
  { script: "exit 137", reason: "Error", exitCode: 137 },
  { script: "sh -c 'kill -9 $$'; exit $?", reason: "Error", exitCode: 137 },
  { script: `${eater}; exit 0`, reason: "Completed", exitCode: 0 },
  {
    script: "dd if=/dev/zero of=/dev/null bs=4M count=9 2>/dev/null; exit 1",
    reason: "Error",
    exitCode: 1,
  },
];

/** Collects exits of containers from the event stream. */
class Ends {
  readonly #waiting = new Map<string, (end: End) => void>();
  readonly #abort = new AbortController();
  readonly #done: Promise<void>;

  constructor(daemon: Daemon) {
    this.#done = this.#listen(daemon).catch((error: unknown) => {
      if (!this.#abort.signal.aborted) throw error;
    });
  }

  async #listen(daemon: Daemon): Promise<void> {
    const options = { signal: this.#abort.signal, timeoutMs: 0 };
    for await (const event of daemon.client.GetContainerEvents({}, options)) {
      if (event.container_event_type !== CONTAINER_STOPPED_EVENT) continue;
      const atMs = performance.now();
      const status = event.containers_statuses?.find(({ id }) => id === event.container_id);
      const { reason = "", exit_code: exitCode = 0, message = "" } = status ?? {};
      this.#waiting.get(event.container_id)?.({ reason, exitCode, message, atMs } as End);
    }
  }

  /** Must be called before the container starts. */
  async of(id: string): Promise<End> {
    const end = new Promise<End>((resolve) => this.#waiting.set(id, resolve));
    const late = sleep(endMsMax, undefined, { ref: false }).then(() => {
      throw new Error(`no event reported the exit of container ${id}`);
    });
    try {
      return await Promise.race([end, late]);
    } finally {
      this.#waiting.delete(id);
    }
  }

  async close(): Promise<void> {
    this.#abort.abort();
    await this.#done;
  }
}

type Bench = { daemon: Daemon; ends: Ends };
type Pod = { id: string; config: PodSandboxConfig };

async function makePods(daemon: Daemon, count: number): Promise<Pod[]> {
  const pods: Pod[] = [];
  while (pods.length < count) {
    const config = daemon.hostPodConfig();
    pods.push({ id: await daemon.runPod(config), config });
  }
  return pods;
}

async function live({ daemon, ends }: Bench, pod: Pod, { script, act }: Life): Promise<End> {
  const id = await daemon.create(pod.id, pod.config, script, limited);
  const end = ends.of(id);
  await daemon.client.StartContainer({ container_id: id });
  if (act === "kill") process.kill(await daemon.pidOf(id), "SIGKILL");
  if (act === "stop") await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  const told = await end;
  await daemon.client.RemoveContainer({ container_id: id });
  return told;
}

/** Runs `count` cases and returns the number of correct reports; prints the others. */
async function right(bench: Bench, lives: Life[], count: number): Promise<number> {
  const pods = await makePods(bench.daemon, atOnce / aPod);
  let next = 0;
  let good = 0;
  const worker = async (pod: Pod) => {
    while (next < count) {
      const life = lives[next++ % lives.length]!;
      const end = await live(bench, pod, life);
      const isOom = end.reason === "OOMKilled";
      const told = !isOom || end.message.endsWith("the container's memory limit was reached");
      if (end.reason === life.reason && end.exitCode === life.exitCode && told) good++;
      else process.stdout.write(`wrong: ${JSON.stringify({ life, end })}\n`);
    }
  };
  await Promise.all(pods.flatMap((pod) => Array.from({ length: aPod }, () => worker(pod))));
  for (const pod of pods) await bench.daemon.removePod(pod.id);
  return good;
}

/** Milliseconds from the exit of a container's first process, by its pidfd, to the event. */
async function seenMs(
  { daemon, ends }: Bench,
  pod: Pod,
  poller: Poller,
  script: string,
): Promise<number> {
  const wait = "until [ -e /go ]; do sleep 0.02; done";
  const id = await daemon.create(pod.id, pod.config, `${wait}; ${script}`, limited);
  const end = ends.of(id);
  await daemon.client.StartContainer({ container_id: id });
  const pidfd = openPidfd(await daemon.pidOf(id));
  if (pidfd === undefined) throw new Error("this kernel has no pidfds");
  const gone = poller.readable(pidfd).then(() => performance.now());
  await daemon.exec(id, ["touch", "/go"]);
  const [goneMs, { atMs }] = await Promise.all([gone, end]);
  poller.forget(pidfd);
  pidfd.close();
  await daemon.client.RemoveContainer({ container_id: id });
  return Math.max(0, atMs - goneMs);
}

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

async function latencies(bench: Bench, rounds: number): Promise<{ oomMs: number; exitMs: number }> {
  const [pod] = await makePods(bench.daemon, 1);
  using poller = new Poller();
  const measured = { oom: [] as number[], exit: [] as number[] };
  for (let round = 0; round < rounds; round++) {
    measured.oom.push(await seenMs(bench, pod!, poller, `exec ${eater}`));
    measured.exit.push(await seenMs(bench, pod!, poller, "exit 1"));
  }
  await bench.daemon.removePod(pod!.id);
  return { oomMs: median(measured.oom), exitMs: median(measured.exit) };
}

/** CPU share (of one core) of the monitor with sleeping containers. */
async function idlePercent({ daemon }: Bench, count: number): Promise<number> {
  const pods = await makePods(daemon, 5);
  for (let made = 0; made < count; made++) {
    const pod = pods[made % pods.length]!;
    await daemon.run(pod.id, pod.config, ["sleep", "3600"], limited);
  }
  await sleep(3_000);
  const [monitor] = daemon.monitors();
  const ticks = () => {
    const fields = readFileSync(`/proc/${monitor}/stat`, "utf8")
      .replace(/^.*\) /, "")
      .split(" ");
    return Number(fields[11]) + Number(fields[12]);
  };
  const before = ticks();
  await sleep(idleMs);
  const percent = ((ticks() - before) * 100_000) / ticksPerS / idleMs;
  for (const pod of pods) await daemon.removePod(pod.id);
  return percent;
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      kills: { type: "string", default: isV2 ? "200" : "1000" },
      others: { type: "string", default: isV2 ? "200" : "1000" },
      rounds: { type: "string", default: "30" },
      idle: { type: "string", default: "100" },
    },
  });
  const [killed, plain] = [Number(values.kills), Number(values.others)];
  const [rounds, idle] = [Number(values.rounds), Number(values.idle)];
  await using daemon = await startDaemon({ config: { "enable-pod-events": true } });
  const bench = { daemon, ends: new Ends(daemon) };
  let failed = 0;
  const tell = (good: boolean, text: string) => {
    process.stdout.write(`${good ? "ok  " : "OVER"}  ${text}\n`);
    if (!good) failed++;
  };
  process.stdout.write(`cgroup v${isV2 ? 2 : 1}, ${cgroupDriver}\n`);
  const seen = await right(bench, kills, killed);
  tell(
    seen === killed,
    `OOM kills told, with whose limit: ${seen} of ${killed}, ${atOnce} at a time`,
  );
  const wrong = plain - (await right(bench, others, plain));
  tell(wrong === 0, `other ends told wrongly: ${wrong} of ${plain}`);
  if (rounds > 0) {
    const { oomMs, exitMs } = await latencies(bench, rounds);
    const ratio = oomMs / exitMs;
    const text = `${oomMs.toFixed(2)} ms after the end, a bare exit ${exitMs.toFixed(2)} ms: ${ratio.toFixed(2)} times`;
    tell(ratio <= ratioMax, `OOM reason seen ${text} (at most ${ratioMax})`);
  }
  if (idle > 0) {
    const percent = await idlePercent(bench, idle);
    const text = `${percent.toFixed(2)} % of a core (at most ${idlePercentMax})`;
    tell(percent <= idlePercentMax, `the monitor, idle with ${idle} containers: ${text}`);
  }
  await bench.ends.close();
  return failed === 0 ? 0 : 1;
}

process.exitCode = await main();
