// What the RPCs work with. daemon.ts puts it together; nothing here is global.
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import { CriError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { EventBus } from "../base/event_bus.ts";
import { quoted } from "../base/text.ts";
import type { ImageStore } from "../image/store.ts";
import type { MonitorClient } from "../monitor_client/client.ts";
import type { CgroupDriver } from "../node/cgroup.ts";
import type { CniNetwork } from "../node/cni.ts";
import type { DiskUsages } from "../stats/disk_usage.ts";
import type { UsernsAccess } from "../node/userns_access.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import type { Sampler } from "../stats/sampler.ts";
import type { HandlerSettings, HostInfo, RuntimeSupport } from "../spec/spec_inputs.ts";
import type { Container } from "../state/container.ts";
import type { EventClock } from "../state/event_clock.ts";
import type { PodEvent } from "../state/events.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Store } from "../state/store.ts";
import type { Streams } from "../stream/streams.ts";
import type { ExitWaiters } from "./exits.ts";
import type { Instruments } from "../stats/instruments.ts";
import type { NriEvents } from "./nri_events.ts";
import type { SingleFlight } from "../base/single_flight.ts";

/** A runtime handler (handlers.ts). */
export type Handler = {
  command: RuntimeCommand;
  /** What its runtime can do, as of the last refresh. */
  readonly facts: RuntimeSupport;
  /** Asks the runtime again if it has been replaced; cheap if not. */
  refresh: () => Promise<void>;
  rules: HandlerSettings;
  /** Absent: the default one. */
  cniConfDir?: string;
};

export type Context = {
  config: Config;
  log: Log;
  /** Of this graph folder: tells our things in shared places from another isulad-ts's. */
  instance: string;
  bootId: string;
  host: HostInfo;
  /** By name; the default one also by "". */
  handlers: ReadonlyMap<string, Handler>;
  sandboxes: Store<Sandbox>;
  containers: Store<Container>;
  images: ImageStore;
  cni: CniNetwork;
  cgroup: CgroupDriver;
  /** Through graph, for the runtimes of pods with a user namespace. */
  usernsAccess: UsernsAccess;
  sampler: Sampler;
  /** What containers have written into their own layers. */
  layers: DiskUsages;
  monitor: MonitorClient;
  streams: Streams;
  exits: ExitWaiters;
  /** Absent: plugins are not wanted (nri-support), or not started yet. */
  nri?: NriEvents;
  instruments: Instruments;
  events: EventBus<PodEvent>;
  /** Of events and of statuses that are to be ordered with them. */
  eventClock: EventClock;
  /** Containers whose start is under way, and its end: its outcome is committed then. */
  starting: Map<string, Promise<void>>;
  /** SELinux levels of pods that are being made, and that no listed record holds yet. */
  levels: Set<string>;
  /** Calls that were answered or are being answered, but for questions; and how many of them go on. */
  calls: { count: number; running: number };
  /** RunPodSandbox and CreateContainer calls under way, by reserved name; their result is the id. */
  making: SingleFlight<string>;
  /** Stop and Remove calls under way, by what they do and the id. */
  ending: SingleFlight<void>;
};

/** A call's own part: aborted when its client has gone or its deadline is over. */
export type Call = { signal: AbortSignal };

/** @throws CriError INVALID_ARGUMENT for a handler that daemon.json does not name. */
export function handlerOf(context: Context, name: string): Handler {
  const handler = context.handlers.get(name);
  if (handler !== undefined) return handler;
  const known = [...context.handlers.keys()].filter((known) => known !== "").join(", ");
  throw new CriError(
    "INVALID_ARGUMENT",
    `no runtime handler ${quoted(name)}: daemon.json (runtimes, cri-runtimes) has ${known}`,
  );
}

/** Whether pods of this handler can have a user namespace of their own. */
export function hasUserNamespaces({ host, images }: Context, { facts }: Handler): boolean {
  const hasLayers = host.idmappedLayers || images.storage.driver === "native";
  return hasLayers && facts.idmapMounts;
}

/**
 * The runtime to take away what a handler made. Where daemon.json names the handler no longer, any will
 * do: the monitor knows which one it started a container with.
 */
export function removingCommand({ handlers }: Context, name: string): RuntimeCommand {
  return (handlers.get(name) ?? handlers.get("")!).command;
}

/** A step's own deadline, within what the call has left. */
export function stepSignal(context: Context, call: Call): AbortSignal {
  return AbortSignal.any([call.signal, AbortSignal.timeout(context.config.runtimeTimeoutMs)]);
}

/** Where a sandbox's namespaces and files lie, for this boot. */
export function podFolder(context: Context, sandboxId: string): string {
  return join(context.config.state, "sandboxes", sandboxId);
}

/** An id as CRI clients know them: 64 hexadecimal digits. */
export function newId(): string {
  return randomBytes(32).toString("hex");
}
