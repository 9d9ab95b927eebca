// Defines the loads of test/stress.ts. Each item of a load is drawn from the seed and its index, and its
// result is compared with the expected one.
import { renameSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { codeOf } from "../src/base/errors.ts";
import { toLong } from "../src/base/int64.ts";
import { connect } from "../src/cli/client.ts";
import { openSpdy } from "../src/cli/stream_client.ts";
import { runtime } from "../src/proto/messages.js";
import { converse, exitCodeIn, type Transport } from "./stream_client.ts";
import { collected } from "./stream/wires.ts";
import { type Calls, type Started } from "./stress_calls.ts";
import { compareOutput, difference } from "./stress_check.ts";
import { echoPort, type Pod, slowHandler } from "./stress_node.ts";

export const loadNames = [
  "execs",
  "short",
  "terminals",
  "slow",
  "streams",
  "attaches",
  "forwards",
  "pulls",
  "pods",
  "cancels",
] as const;
export type LoadName = (typeof loadNames)[number];

/** Shared objects of all loads. */
export type Stage = {
  calls: Calls;
  /** The containers' pod. */
  pod: Pod;
  /** The pod with the slow runtime. */
  slowPod: Pod;
  /** The pod with a network and servers. */
  network: Pod;
  /** Containers for execs. */
  targets: Started[];
};
/** index: among all items of this load; slot: among the running ones. */
export type Item = { index: number; slot: number; draw: () => number };
export type Load = { atOnce: number; run: (stage: Stage, item: Item) => Promise<void> };

export const loads: Record<LoadName, Load> = {
  execs: { atOnce: 10, run: exec },
  short: { atOnce: 3, run: (stage, item) => short(stage, item, false) },
  terminals: { atOnce: 3, run: (stage, item) => short(stage, item, true) },
  slow: { atOnce: 1, run: slow },
  streams: { atOnce: 2, run: stream },
  attaches: { atOnce: 1, run: attach },
  forwards: { atOnce: 1, run: forward },
  pulls: { atOnce: 2, run: pull },
  pods: { atOnce: 1, run: podLife },
  cancels: { atOnce: 2, run: cancel },
};

const asHost = { host: true };

/** "1\n2\n…", as seq writes them. */
export function numbers(from: number, to: number): string {
  return Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => `${from + at}\n`).join("");
}

function between(draw: () => number, low: number, high: number): number {
  return low + Math.floor(draw() * (high - low + 1));
}

/** Usually a few lines, sometimes more than a pipe holds. */
function drawLines(draw: () => number): number {
  const drawn = draw();
  if (drawn < 0.02) return between(draw, 20_000, 100_000);
  return drawn < 0.15 ? between(draw, 100, 9_000) : 1;
}

async function exec({ calls, targets }: Stage, { index, slot, draw }: Item): Promise<void> {
  const exitCode = index % 256;
  const [out, err] = [drawLines(draw), drawLines(draw)];
  const [first, second] = [index * 10, index * 10 + 5];
  const say = (from: number, lines: number) =>
    lines === 1 ? `echo ${from}` : `seq ${from} ${from + lines - 1}`;
  // Kept open until the exit: otherwise its descriptor numbers would be reused.
  const pause = draw() < 0.2 ? `exec >&- 2>&-; usleep ${between(draw, 0, 500_000)};` : "";
  const command = `${say(first, out)}; ${say(second, err)} >&2; ${pause} exit ${exitCode}`;
  const { id } = targets[between(draw, 0, targets.length - 1)]!;
  const request = { container_id: id, cmd: ["sh", "-c", command], timeout: toLong(100) };
  const response = await calls.again(() => calls.client(slot).ExecSync(request));
  const got = {
    exitCode: response.exit_code,
    stdout: Buffer.from(response.stdout).toString(),
    stderr: Buffer.from(response.stderr).toString(),
  };
  const [stdout, stderr] = [numbers(first, first + out - 1), numbers(second, second + err - 1)];
  const options = { who: `exec ${index}`, faults: calls.tally.faults };
  compareOutput(got, { exitCode, stdout, stderr }, options);
  calls.tally.execs++;
  calls.tally.execBytes += stdout.length + stderr.length;
}

async function short({ calls, pod }: Stage, { index, draw }: Item, tty: boolean): Promise<void> {
  const exitCode = index % 256;
  const lines = draw() < 0.2 ? between(draw, 1_000, 20_000) : between(draw, 0, 3);
  const pause = () => (draw() < 0.5 ? "" : `usleep ${between(draw, 0, 300_000)};`);
  const close = draw() < 0.3 ? "exec <&- >&- 2>&-;" : "";
  const command = `${pause()} seq 1 ${lines}; ${close} ${pause()} exit ${exitCode}`;
  const key = `${tty ? "terminal" : "short"}-${index}`;
  await wholeLife(calls, { key, pod, command, config: { tty } }, exitCode, {
    stdout: numbers(1, lines),
    stderr: "",
  });
}

async function slow({ calls, slowPod }: Stage, { index }: Item): Promise<void> {
  const exitCode = index % 256;
  const command = `echo slow ${index}; exit ${exitCode}`;
  const wish = { key: `slow-${index}`, pod: slowPod, command };
  await wholeLife(calls, wish, exitCode, { stdout: `slow ${index}\n`, stderr: "" });
}

type Wish = Parameters<Calls["start"]>[0];

/** Runs a container from creation to removal. */
async function wholeLife(
  calls: Calls,
  wish: Wish,
  exitCode: number,
  wanted: { stdout: string; stderr: string },
): Promise<void> {
  const started = await calls.start(wish);
  if ((await calls.ended(started, exitCode)) === undefined) return;
  calls.log(started, wanted);
  await calls.remove(started.id);
}

/** Writes at full speed to both streams, with a pause after each burst; its log is rotated meanwhile. */
export async function logger({ calls, pod }: Stage, { index, draw }: Item): Promise<void> {
  const exitCode = index % 256;
  const [bursts, out, err] = [
    between(draw, 1, 12),
    between(draw, 1, 30_000),
    between(draw, 1, 999),
  ];
  const pauseUs = draw() < 0.2 ? 0 : between(draw, 0, 300_000);
  const command = `i=0; while [ $i -lt ${bursts} ]; do
  seq $((i * ${out} + 1)) $((i * ${out} + ${out})) & seq $((i * ${err} + 1)) $((i * ${err} + ${err})) >&2
  wait; usleep ${pauseUs}; i=$((i + 1))
done
printf 'the end'; printf 'of both' >&2; exit ${exitCode}`;
  const started = await calls.start({ key: `logger-${index}`, pod, command });
  const older: string[] = [];
  if (draw() < 0.5) await rotate(calls, started, { older, pauseMs: between(draw, 50, 400) });
  const status = await calls.ended(started, exitCode, { withinMs: 180_000 });
  const stdout = `${numbers(1, bursts * out)}the end`;
  const stderr = `${numbers(1, bursts * err)}of both`;
  if (status === undefined) return;
  calls.log(started, { stdout, stderr }, older);
  await calls.remove(started.id);
}

/** Rotates a log like a kubelet: renames the file, then the daemon opens a new one. */
async function rotate(
  calls: Calls,
  { id, logPath }: Started,
  { older, pauseMs }: { older: string[]; pauseMs: number },
): Promise<void> {
  for (let count = 1; count <= 3; count++) {
    await sleep(pauseMs);
    const running = runtime.v1.ContainerState.CONTAINER_RUNNING;
    if ((await calls.status(id)).state !== running) return;
    const name = `${logPath}.${count}`;
    try {
      renameSync(logPath, name);
      older.push(name);
      await calls.again(() => calls.daemon.client.ReopenContainerLog({ container_id: id }));
    } catch (error) {
      if (codeOf(error) === "FAILED_PRECONDITION") return; // It has ended.
      throw error;
    }
  }
}

function transportOf(index: number): Transport {
  return index % 2 === 0 ? "SPDY" : "WebSocket";
}

/** Makes distinguishable text of up to a few MB. */
function drawText(index: number, draw: () => number): string {
  const lines = draw() < 0.2 ? between(draw, 10_000, 200_000) : between(draw, 1, 500);
  return numbers(index * 1000, index * 1000 + lines);
}

/** Retries after restarts, and ignores the output of interrupted attempts. */
async function untilWhole(calls: Calls, act: () => Promise<void>): Promise<void> {
  while ((await calls.once(act, { anyError: true })) === undefined);
}

/** @throws Error when the stream was interrupted. */
function statusCode(status: string): number {
  const code = status === "" ? Number.NaN : exitCodeIn(status);
  if (Number.isNaN(code))
    throw new Error(`a stream ended with the status ${JSON.stringify(status)}`);
  return code;
}

async function stream({ calls, targets }: Stage, { index, slot, draw }: Item): Promise<void> {
  const { id } = targets[between(draw, 0, targets.length - 1)]!;
  const text = drawText(index, draw);
  const exitCode = index % 256;
  const cmd = ["sh", "-c", `cat; echo end >&2; exit ${exitCode}`];
  const asked = { stdin: true, stdout: true, stderr: true };
  await untilWhole(calls, async () => {
    const { url } = await calls.client(slot).Exec({ container_id: id, cmd, ...asked });
    const talk = await converse(url, asked, transportOf(index));
    await talk.type(text);
    await talk.endInput();
    const { stdout, stderr, status } = await talk.end;
    const got = { exitCode: statusCode(status), stdout, stderr };
    const options = { who: `stream ${index}`, faults: calls.tally.faults };
    compareOutput(got, { exitCode, stdout: text, stderr: "end\n" }, options);
    calls.tally.streamBytes += 2 * text.length;
  });
}

/** Checks that typed text is echoed and logged. */
async function attach({ calls, pod }: Stage, { index, slot, draw }: Item): Promise<void> {
  const text = numbers(1, between(draw, 1, 2_000));
  const asked = { stdin: true, stdout: true, stderr: true };
  const config = { stdin: true, stdin_once: true };
  for (let attempt = 0; ; attempt++) {
    const key = `attach-${index}-${attempt}`;
    const started = await calls.start({ key, pod, command: "cat", config });
    const talked = await calls.once(
      async () => {
        const { url } = await calls.client(slot).Attach({ container_id: started.id, ...asked });
        const talk = await converse(url, asked, transportOf(index));
        await talk.type(text);
        await talk.endInput();
        const { stdout, status } = await talk.end;
        statusCode(status);
        return stdout;
      },
      { anyError: true },
    );
    if (talked !== undefined) {
      const words = difference(talked.result, text);
      if (words !== undefined) calls.fault("bytes differ", `${key}: ${words}`);
      const status = await calls.ended(started, 0);
      if (status !== undefined) calls.log(started, { stdout: text, stderr: "" });
      calls.tally.streamBytes += 2 * text.length;
    }
    await calls.remove(started.id);
    if (talked !== undefined) return;
  }
}

async function forward({ calls, network }: Stage, { index, slot, draw }: Item): Promise<void> {
  const texts = Array.from({ length: 3 }, (_, at) => drawText(index + at, draw));
  await untilWhole(calls, async () => {
    const request = { pod_sandbox_id: network.id, port: [echoPort] };
    const { url } = await calls.client(slot).PortForward(request);
    const session = await openSpdy(url, "portforward.k8s.io");
    const running = session.run().catch(() => {});
    const said = texts.map(async (text, at) => {
      const headers = { port: String(echoPort), requestid: String(at) };
      const error = await session.open({ ...headers, streamtype: "error" });
      await error.end();
      const data = await session.open({ ...headers, streamtype: "data" });
      const reading = collected(data.chunks());
      await data.write(Buffer.from(text));
      await data.end();
      return reading;
    });
    for (const [at, got] of (await Promise.all(said)).entries()) {
      const words = difference(got, texts[at]!);
      if (words !== undefined) throw new Error(`forward ${index}: bytes differ: ${words}`);
      calls.tally.streamBytes += 2 * got.length;
    }
    session.wire.close();
    await running;
  });
}

async function pull({ calls }: Stage, { slot }: Item): Promise<void> {
  const name = calls.node.image(slot);
  const image = { image: name };
  await calls.again(() => calls.client(slot).PullImage({ image }));
  const { images } = await calls.again(() => calls.client(slot).ListImages({}));
  if (!images.some(({ repo_tags }) => repo_tags?.includes(name))) {
    calls.fault("state", `${name} was pulled and is not listed`);
  }
  await calls.again(() => calls.client(slot).RemoveImage({ image }));
}

/** Runs a pod with a network and a container that is stopped twice at once, and removes all. */
async function podLife({ calls }: Stage, { index, draw }: Item): Promise<void> {
  const handler = draw() < 0.3 ? slowHandler : "";
  const pod = await calls.runPod(`life-${index}`, { handler });
  const started = await calls.start({
    key: `life-${index}`,
    pod,
    command: "trap 'echo stopped; exit 9' TERM; echo up; while true; do usleep 20000; done",
  });
  await calls.again(() => calls.daemon.logged(started.id, "up\n"));
  const stop = { container_id: started.id, timeout: toLong(60) };
  await twice(() => calls.again(() => calls.daemon.client.StopContainer(stop)));
  if ((await calls.ended(started, 9)) === undefined) return;
  calls.log(started, { stdout: "up\nstopped\n", stderr: "" });
  const request = { pod_sandbox_id: pod.id };
  if (draw() < 0.5)
    await twice(() => calls.again(() => calls.daemon.client.StopPodSandbox(request)));
  await calls.removePod(pod.id);
}

async function twice(act: () => Promise<unknown>): Promise<void> {
  await Promise.all([act(), act()]);
}

type Cut = (stage: Stage, signal: AbortSignal, key: string) => Promise<unknown>;

/** Cancels calls, on separate connections. */
const cuts: Record<string, Cut> = {
  ExecSync: async ({ calls, targets }, signal) => {
    using client = connect(`unix://${calls.daemon.socket}`);
    const cmd = ["sh", "-c", "seq 1 1000; sleep 1; seq 1 1000"];
    await client.ExecSync({ container_id: targets[0]!.id, cmd, timeout: toLong(9) }, { signal });
  },
  RunPodSandbox: async ({ calls }, signal, name) => {
    using client = connect(`unix://${calls.daemon.socket}`);
    const config = calls.daemon.podConfig({ metadata: { name, attempt: 0 } });
    await client.RunPodSandbox({ config }, { signal });
  },
  PullImage: async ({ calls }, signal) => {
    using client = connect(`unix://${calls.daemon.socket}`);
    await client.PullImage({ image: { image: calls.node.image(2) } }, { signal });
  },
  StartContainer: async ({ calls, slowPod }, signal, key) => {
    using client = connect(`unix://${calls.daemon.socket}`);
    const more = { metadata: { name: key }, labels: { stress: key } };
    const id = await calls.daemon.create(slowPod.id, slowPod.config, "sleep 1000", more);
    await client.StartContainer({ container_id: id }, { signal });
  },
};

async function cancel(stage: Stage, { index, draw }: Item): Promise<void> {
  const { calls } = stage;
  const names = Object.keys(cuts);
  const name = names[index % names.length]!;
  const key = `cancel-${index}`;
  const cut = new AbortController();
  const timer = setTimeout(() => cut.abort(), draw() * 1_000);
  try {
    await calls.once(async () => void (await cuts[name]!(stage, cut.signal, key)));
  } catch (error) {
    if (codeOf(error) !== "CANCELLED") calls.failed(`${key} (${name})`, error);
  } finally {
    clearTimeout(timer);
  }
  if (name === "RunPodSandbox") {
    const pod = await calls.runPod(`${key}-again`, asHost);
    await calls.removePod(pod.id);
    await calls.removePodByName(key);
  }
  if (name === "StartContainer") await afterCancelledStart(calls, key);
}

async function afterCancelledStart(calls: Calls, key: string): Promise<void> {
  const filter = { label_selector: { stress: key } };
  const list = () => calls.daemon.client.ListContainers({ filter });
  for (const { id } of (await calls.again(list)).containers) await calls.settled(id!, key);
  await calls.removeByKey(key);
}
