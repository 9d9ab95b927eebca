// Provides the stage on which a neighbour misbehaves: a daemon with the quiet pod, a pod for the bad neighbour, a
// registry that answers as it is told, and the meters of lag and use.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import type { ContainerConfig, PodSandboxConfig } from "../src/proto/types.ts";
import { type Daemon, executable, startDaemon } from "./harness.ts";
import { LagMeter } from "./neighbours_lag.ts";
import { QuietPod } from "./neighbours_quiet.ts";
import { freePort } from "./registry.ts";
import { FakeRegistry } from "./registry/fake_registry.ts";

/** What an attack finds. */
export type Stage = {
  daemon: Daemon;
  /** Those of daemon and monitor. */
  pids: number[];
  quiet: QuietPod;
  registry: FakeRegistry;
  metricsPort: number;
  /** The bad neighbour's pod, in the network of the node, and a container in it that sleeps. */
  pod: { id: string; config: PodSandboxConfig };
  container: string;
  /** Runs a container in the bad neighbour's pod. */
  run: (command: string | string[], more?: ContainerConfig) => Promise<string>;
};

/** A kind of bad neighbour. */
export type Attack = {
  name: string;
  /** Item of the issue that found it; "-": a relative, or a control. */
  item: string;
  about: string;
  /** Resolves when everything is ready; what it returns is disposed of after the last round. */
  prepare(stage: Stage): Promise<Attacker>;
  /** How it differs from the limits for all. */
  limits?: { memoryMib?: number; lagMsMax?: number };
};

export type Attacker = AsyncDisposable & {
  /** Attacks for about so many seconds. */
  attack(seconds: number): Promise<void>;
  /** Returns what is wrong after the last round, beyond what is measured for all, and figures for the table. */
  check?(): Promise<{ faults: string[]; notes?: string[] }>;
};

export type WholeStage = Stage & AsyncDisposable & { lag: LagMeter };

/** binary: another build than the one under test, with the same file name. */
export async function openStage(binary = executable): Promise<WholeStage> {
  await using opened = new AsyncDisposableStack();
  const registry = opened.use(await FakeRegistry.start());
  const metricsPort = await freePort();
  const config = {
    "metrics-port": metricsPort,
    "insecure-registries": [registry.host],
    "log-level": "INFO",
  };
  const daemon = opened.use(await startDaemon({ config, executable: binary }));
  const podConfig = daemon.hostPodConfig({ metadata: { name: "neighbour" } });
  const pod = { id: await daemon.runPod(podConfig), config: podConfig };
  const container = await daemon.run(pod.id, podConfig, ["sleep", "1000000"]);
  const quiet = opened.use(await QuietPod.start(daemon));
  const lag = opened.use(await LagMeter.start(daemon.socket, binary, daemon.dir));
  const owned = opened.move();
  return {
    daemon,
    pids: daemon.scope.pids(),
    quiet,
    registry,
    metricsPort,
    pod,
    container,
    lag,
    run: (command, more) => daemon.run(pod.id, podConfig, command, more),
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** Runs a pod with a log folder of its own, which a test may have mounted. */
export async function podAt(
  { daemon }: Stage,
  name: string,
  logFolder: string,
): Promise<{ id: string; config: PodSandboxConfig }> {
  mkdirSync(logFolder, { recursive: true });
  const config = daemon.hostPodConfig({ metadata: { name }, log_directory: logFolder });
  return { id: await daemon.runPod(config), config };
}

export function folderFor({ daemon }: Stage, name: string): string {
  const folder = join(daemon.dir, name);
  mkdirSync(folder, { recursive: true });
  return folder;
}

export const engine = process.execPath;
