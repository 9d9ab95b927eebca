// Context: the dependencies that daemon.ts passes to every RPC handler.
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import type { Crowd } from "../base/crowd.ts";
import type { TlsServerName } from "../base/config_keys.ts";
import type { Log } from "../base/log.ts";
import type { EventBus } from "../base/event_bus.ts";
import type { ImageStore } from "../image/store.ts";
import type { MonitorClient } from "../monitor_client/client.ts";
import type { CgroupDriver } from "../node/cgroup.ts";
import type { CniLists, CniNetwork } from "../node/cni.ts";
import type { DiskUsages } from "../stats/disk_usage.ts";
import type { UsernsAccess } from "../node/userns_access.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import { podFiles, podStateFolder, type PodPlace } from "../node/pod_files.ts";
import { namespaceOptions } from "../spec/namespace_options.ts";
import type { Sampler } from "../stats/sampler.ts";
import type { HandlerSettings, HostInfo, PodFiles, RuntimeSupport } from "../spec/spec_inputs.ts";
import type { Container } from "../state/container.ts";
import type { EventClock } from "../state/event_clock.ts";
import type { PodEvent } from "../state/events.ts";
import type { RuntimeKind, Sandbox } from "../state/sandbox.ts";
import type { Store } from "../state/store.ts";
import type { Renewable } from "../sys/tls_server.ts";
import type { Tracing } from "../trace/tracing.ts";
import type { Streams } from "../stream/streams.ts";
import type { ExitWaiters } from "../state/exit_waiters.ts";
import type { Instruments } from "../stats/instruments.ts";
import type { Health } from "../node/health.ts";
import type { NriEvents } from "./nri_events.ts";
import type { PodHistory } from "../history/pod_history.ts";
import type { SingleFlight } from "../base/single_flight.ts";

/** A runtime handler (runtime_handlers.ts). */
export type Handler = {
  runtimeKind: RuntimeKind;
  command: RuntimeCommand;
  /** Why the handler cannot be used, as of the last refresh; undefined: it can be used. */
  readonly problem?: string | undefined;
  /** Features of its runtime, as of the last refresh. */
  readonly support: RuntimeSupport;
  /** Detects the features again if the runtime was replaced; cheap otherwise. */
  refresh: () => Promise<void>;
  rules: HandlerSettings;
  cniLists: CniLists;
};

export type Context = {
  config: Config;
  log: Log;
  /** Derived from the graph folder; marks this daemon's objects in places that several daemons share. */
  instance: string;
  bootId: string;
  host: HostInfo;
  /** By name; the default handler is also under "". */
  handlers: ReadonlyMap<string, Handler>;
  sandboxes: Store<Sandbox>;
  containers: Store<Container>;
  images: ImageStore;
  cni: CniNetwork;
  cgroup: CgroupDriver;
  /** Access through the graph folder for runtimes of pods with a user namespace. */
  usernsAccess: UsernsAccess;
  sampler: Sampler;
  /** Disk usage of the containers' writable layers. */
  layers: DiskUsages;
  monitor: MonitorClient;
  streams: Streams;
  exits: ExitWaiters;
  /** Absent if nri-support is off, or plugins are not started yet. */
  nri?: NriEvents;
  /** What happened to each pod. */
  history: PodHistory;
  health: Health;
  /** Applies the configuration files to this daemon; one reload at a time. */
  reload(): Promise<{ applied: string[]; restart: string[]; warnings: string[] }>;
  /** Looks into this daemon (debug.ts). */
  debug: {
    dump(): Promise<string>;
    profile(seconds: number, signal: AbortSignal): Promise<string>;
  };
  instruments: Instruments;
  /** Absent without a trace collector. */
  tracing?: Tracing;
  /** The servers that use TLS; undefined: none of that name does. */
  tlsServers: Partial<Record<TlsServerName, Renewable | undefined>>;
  events: EventBus<PodEvent>;
  /** The pods' markers for cAdvisor (pod_markers.ts); absent without containerd-socket, or before ready. */
  podMarkers?: {
    changed(sandboxId: string): void;
    processOf(sandboxId: string): number | undefined;
  };
  /** Timestamps events, and statuses whose order relative to events matters. */
  eventClock: EventClock;
  /** Starts under way, by container; each resolves when its outcome is committed. */
  starting: Map<string, Promise<void>>;
  /** Let pods in turn make their namespaces and networks, and containers start. */
  crowds: { pods: Crowd; containers: Crowd };
  /** SELinux levels of pods whose records are not listed yet. */
  levels: Set<string>;
  /** Calls that change state: how many began so far, and how many are running. */
  calls: { count: number; running: number };
  /** RunPodSandbox and CreateContainer calls under way, by reserved name; each results in an id. */
  making: SingleFlight<string>;
  /** Stop and Remove calls under way, by verb and id. */
  ending: SingleFlight<void>;
};

/** signal aborts when the client cancels or disconnects, or its deadline passes. */
export type Call = { signal: AbortSignal };

/** Aborts with the call, or when one step takes longer than runtime-timeout. */
export function stepSignal(context: Context, call: Call): AbortSignal {
  return AbortSignal.any([call.signal, AbortSignal.timeout(context.config.runtimeTimeoutMs)]);
}

/** Folder of a sandbox's namespaces and files, for this boot. */
export function podFolder(context: Context, sandboxId: string): string {
  return podStateFolder({ state: context.config.state, id: sandboxId });
}

/** Where the files are that a sandbox's containers share; its /dev/shm is the node's if it shares the node's ipc. */
export function placeOfPod(
  { config: { state } }: Context,
  { id, config }: Pick<Sandbox, "id" | "config">,
): PodPlace {
  return { state, id, hostIpc: namespaceOptions(config).ipc === "node" };
}

/** The files that a sandbox's containers share. */
export function filesOfPod(context: Context, sandbox: Pick<Sandbox, "id" | "config">): PodFiles {
  return podFiles(placeOfPod(context, sandbox));
}

/** Folder of the FIFOs of a container's standard streams, for this boot. */
export function stdioFolder(context: Context, id: string): string {
  return join(context.config.state, "stdio", id);
}

/** A random id of 64 hexadecimal digits, as CRI clients expect. */
export function newId(): string {
  return randomBytes(32).toString("hex");
}
