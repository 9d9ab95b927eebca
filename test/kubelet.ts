// Runs a real kubelet with static pods that crash, are probed, restarted and removed, against the daemon with
// pod events, once with Evented PLEG and once without; kubelet_check.ts checks the containers that CRI showed
// and the kubelet's log. `bun test/kubelet.ts [--minutes 10] [--evented on|off|both] [--kill SECONDS] [--again]`
// skips a run that passed with this executable (test/.cache/kubelet.json). `--kill` kills the daemon, the monitor,
// both or the kubelet in turn, at this interval. KUBELET=path names an existing kubelet; otherwise one of
// KUBELET_VERSION (default 1.36.3) is built from Go's module proxy in a quarter of an hour. Needs root.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { codeOf } from "../src/base/errors.ts";
import { toBigInt } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";
import { busybox, type Daemon, executable, startDaemon } from "./harness.ts";
import { makeCgroups } from "./host.ts";
import { buildKubelet, hasShortBackOff, Kubelet, Netns, version } from "./kubelet_node.ts";
import { check, type Expected, type Seen } from "./kubelet_check.ts";
import { Kills } from "./kubelet_kills.ts";
import { type Manifest, standingPods, visitingPod } from "./kubelet_pods.ts";
import { resumed } from "./run_record.ts";

const cache = join(import.meta.dirname, ".cache");
const { ContainerState } = runtime.v1;
const listMs = 500;
/** Interval between pods, and the lifetime of each. */
const visitMs = 20_000;
const stayMs = 30_000;
/** Limit for the restart of a crashed container: a back-off of 2 s, or of 5 min, on a busy machine. */
const stuckMs = hasShortBackOff ? 60_000 : 360_000;
/** Limit for the kubelet to remove a pod's containers: it collects them once a minute, from its start. */
const goneMs = 90_000;

type Row = Pick<Seen, "id" | "name" | "attempt"> & {
  labels: Record<string, string>;
  createdMs: number;
  state: runtime.v1.ContainerState;
};

/** Collects every container from lists and events. */
class Sightings implements AsyncDisposable {
  readonly #daemon: Daemon;
  readonly #byId = new Map<string, Seen>();
  readonly #abort = new AbortController();
  readonly #ends: Promise<void>[];

  constructor(daemon: Daemon) {
    this.#daemon = daemon;
    this.#ends = [this.#repeat(() => this.#listen()), this.#repeat(() => this.list())];
    for (const end of this.#ends) end.catch(() => {}); // thrown by the disposal
  }

  all(): Seen[] {
    return [...this.#byId.values()];
  }

  async #listen(): Promise<void> {
    const { signal } = this.#abort;
    for await (const event of this.#daemon.client.GetContainerEvents({}, { signal })) {
      for (const status of event.containers_statuses)
        this.#take(rowOf(status), status.exit_code ?? undefined);
    }
  }

  /** Calls again and again until the disposal; a killed daemon is UNAVAILABLE, its client CANCELLED. */
  async #repeat(call: () => Promise<void>): Promise<void> {
    while (!this.#abort.signal.aborted) {
      try {
        await call();
      } catch (error) {
        if (!["CANCELLED", "UNAVAILABLE"].includes(codeOf(error))) throw error;
      }
      await sleep(listMs);
    }
  }

  async list(): Promise<void> {
    const { containers } = await this.#daemon.client.ListContainers({});
    const there = new Set(containers.map(({ id }) => id));
    for (const seen of this.#byId.values()) seen.isThere = there.has(seen.id);
    for (const container of containers) this.#take(rowOf(container), undefined);
  }

  /** Gets the exit codes of the last containers by ContainerStatus: lists lack them. The kubelet may remove some. */
  async end(): Promise<void> {
    await this.list();
    for (const seen of this.all().filter(({ isThere }) => isThere)) {
      try {
        const status = await this.#daemon.status(seen.id);
        this.#take(rowOf(status), status.exit_code);
      } catch (error) {
        if (codeOf(error) !== "NOT_FOUND") throw error;
      }
    }
  }

  #take({ id, name, attempt, labels, createdMs, state }: Row, exitCode: number | undefined): void {
    const before = this.#byId.get(id);
    this.#byId.set(id, {
      id,
      name,
      attempt,
      createdMs,
      pod: labels["io.kubernetes.pod.name"] ?? "",
      podUid: labels["io.kubernetes.pod.uid"] ?? "",
      running: state === ContainerState.CONTAINER_RUNNING,
      exitCode: exitCode ?? before?.exitCode ?? 0,
      isThere: before?.isThere ?? true,
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#abort.abort();
    await Promise.all(this.#ends);
  }
}

function rowOf(shown: runtime.v1.IContainer | runtime.v1.IContainerStatus): Row {
  const { id, metadata, labels, created_at, state } = shown;
  return {
    id: id!,
    name: metadata!.name!,
    attempt: metadata!.attempt ?? 0,
    labels: labels ?? {},
    createdMs: Number(toBigInt(created_at) / 1_000_000n),
    state: state!,
  };
}

type Plan = { kubelet: string; evented: boolean; minutes: number; killSeconds: number };

/** Runs once and returns the faults. */
async function run({ kubelet, evented, minutes, killSeconds }: Plan): Promise<string[]> {
  mkdirSync(cache, { recursive: true });
  using netns = new Netns(`isulad-kubelet-${process.pid}`);
  const config = { "enable-pod-events": true, "restrict-oom-score-adj": true };
  const program = netns.wrap(executable, cache);
  await using daemon = await startDaemon({ config, executable: program });
  makeCgroups([daemon.cgroupParent.slice(1)]);
  await using sightings = new Sightings(daemon);
  const { dir, cgroupParent, socket: endpoint } = daemon;
  const featureGates = { EventedPLEG: evented };
  await using node = new Kubelet(kubelet, { dir, cgroupParent, endpoint, netns, featureGates });
  const standing = standingPods(busybox);
  for (const manifest of standing) node.add(manifest);
  const untilMs = Date.now() + minutes * 60_000;
  const lastKillMs = untilMs - goneMs;
  await using kills = new Kills(daemon, node, { everyMs: killSeconds * 1000, lastKillMs });
  const visits = await visit(node, untilMs, report(sightings));
  await kills.stop();
  const endMs = Date.now();
  await sightings.end();
  const lines = node.lines;
  const expected: Expected[] = [...standing, ...visits].flatMap((manifest) => manifest.expected);
  const hasKills = killSeconds > 0;
  const problems = check({ seen: sightings.all(), expected, lines, endMs, stuckMs, hasKills });
  if (!node.runs) problems.push(`the kubelet ended:\n${lines.slice(-20).join("\n")}`);
  const seen = sightings.all();
  const most = Math.max(...seen.map(({ attempt }) => attempt));
  console.log(
    `${seen.length} containers, at most ${most} restarts, ${visits.length} pods came and went, kills: ${JSON.stringify(kills.counts)}`,
  );
  if (problems.length > 0) writeFileSync(join(cache, "kubelet.log"), lines.join("\n"));
  return problems;
}

function report(sightings: Sightings): () => void {
  let next = 0;
  return () => {
    if (Date.now() < next) return;
    next = Date.now() + 60_000;
    console.log(`${new Date().toISOString()} ${sightings.all().length} containers`);
  };
}

/** Adds and removes pods until the end, leaving time to remove the last ones. */
async function visit(node: Kubelet, endMs: number, tick: () => void): Promise<Manifest[]> {
  const visits: { manifest: Manifest; leavesMs: number }[] = [];
  let nextMs = Date.now();
  while (Date.now() < endMs && node.runs) {
    tick();
    const nowMs = Date.now();
    if (nowMs >= nextMs && nowMs + stayMs + goneMs < endMs) {
      const manifest = visitingPod(visits.length, busybox);
      node.add(manifest);
      visits.push({ manifest, leavesMs: nowMs + stayMs });
      nextMs = nowMs + visitMs;
    }
    for (const one of visits.filter(({ leavesMs }) => leavesMs <= nowMs)) {
      node.remove(one.manifest);
      one.leavesMs = Number.POSITIVE_INFINITY;
    }
    await sleep(200);
  }
  return visits.map(({ manifest }) => manifest);
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      minutes: { type: "string", default: "10" },
      evented: { type: "string", default: "both" },
      kill: { type: "string", default: "0" },
      again: { type: "boolean", default: false },
    },
  });
  const minutes = Number(values.minutes);
  const killSeconds = Number(values.kill);
  const file = join(cache, "kubelet.json");
  const fresh: { clean: Record<string, number> } = { clean: {} };
  const record = resumed(file, fresh, values);
  const kubelet = buildKubelet(cache);
  let faults = 0;
  for (const evented of values.evented === "both" ? ["on", "off"] : [values.evented]) {
    const name = `kubelet ${version}, Evented PLEG ${evented}, kills every ${killSeconds} s`;
    if ((record.clean[name] ?? 0) >= minutes) continue;
    const problems = await run({ kubelet, evented: evented === "on", minutes, killSeconds });
    for (const problem of problems) console.log(`  ${problem}`);
    console.log(`${name}, ${minutes} minutes: ${problems.length} faults`);
    faults += problems.length;
    if (problems.length === 0) record.clean[name] = minutes;
    writeFileSync(file, JSON.stringify(record));
  }
  console.log(faults === 0 ? `clean: ${JSON.stringify(record.clean)}` : `${faults} faults`);
  return faults === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
