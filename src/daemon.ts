// Makes all parts of the daemon, in order, and ends them in the reverse order when SIGINT, SIGTERM or SIGQUIT
// comes. Containers, and the monitor, go on. Each stage of the start is a step, which dumps name.
import { join } from "node:path";
import { activity } from "./base/activity.ts";
import { nowMs } from "./base/clock.ts";
import { coalesced } from "./base/coalesced.ts";
import { Crowd } from "./base/crowd.ts";
import { liveFields } from "./base/live_fields.ts";
import { build, ownProgram, version } from "./base/build.ts";
import type { Config, LoadedConfig } from "./base/config.ts";
import { messageOf } from "./base/errors.ts";
import type { Log } from "./base/log.ts";
import { EventBus, eventsMax, subscribersMax } from "./base/event_bus.ts";
import { commitExit } from "./cri/container_end.ts";
import type { Context } from "./cri/context.ts";
import { containerCommitted, logChanged, sandboxCommitted } from "./cri/events.ts";
import { LogTroubles } from "./cri/log_troubles.ts";
import { ExitWaiters } from "./state/exit_waiters.ts";
import { Instruments } from "./stats/instruments.ts";
import { Health } from "./node/health.ts";
import { PodHistory } from "./history/pod_history.ts";
import { detectFeatures, openHandlers } from "./cri/runtime_handlers.ts";
import { SingleFlight } from "./base/single_flight.ts";
import { sampledCgroups } from "./cri/usage.ts";
import { MonitorClient } from "./monitor_client/client.ts";
import type { ExitRecord } from "./monitor/protocol.ts";
import { openApparmor } from "./node/apparmor.ts";
import {
  absentControllers,
  type CgroupDriver,
  cgroupMounts,
  type CgroupMounts,
} from "./node/cgroup.ts";
import { cgroupfsDriver } from "./node/cgroupfs.ts";
import { type CniNetwork, openCni } from "./node/cni.ts";
import { writtenFolders } from "./cri/usage.ts";
import { DiskUsages, measurer } from "./stats/disk_usage.ts";
import { readHostInfo } from "./node/host_probe.ts";
import { prepareNetnsFolder } from "./node/netns_folder.ts";
import { reportPrograms } from "./node/programs.ts";
import { UsernsAccess } from "./node/userns_access.ts";
import { Sampler } from "./stats/sampler.ts";
import { openSelinux } from "./node/selinux.ts";
import { systemdDriver } from "./node/systemd.ts";
import { Streams } from "./stream/streams.ts";
import { claimFolders } from "./folders.ts";
import { loadImages, openImages } from "./images.ts";
import { syncWithMonitor } from "./recovery/monitor.ts";
import { recoverRecords } from "./recovery/start.ts";
import { startSweeps } from "./recovery/sweep.ts";
import { containerRecords } from "./state/container.ts";
import { EventClock } from "./state/event_clock.ts";
import type { PodEvent } from "./state/events.ts";
import { writePidfile } from "./pidfile.ts";
import { openMetrics } from "./metrics.ts";
import { openService } from "./service.ts";
import { dumpOnSignal, endSignal, reloadOnSignal } from "./signals.ts";
import { serve, serveContainerd, serveMirror } from "./sockets.ts";
import { sandboxRecords } from "./state/sandbox.ts";
import { Store } from "./state/store.ts";
import { endLeftPrograms, recordPrograms } from "./sys/left_programs.ts";
import { setOomScoreAdj } from "./sys/process.ts";
import { Orphans, orphanScanMs } from "./sys/zombies.ts";
import { bootId } from "./sys/uptime.ts";
import { becomeSubreaper, reapIfChild } from "./sys/wait.ts";
import { returnMemory } from "./sys/memory.ts";

/** Short, since a container cannot be stopped or removed until its exit is committed. */
const commitAgainMs = 1_000;
/** Grace for CNI plugins whose call was cancelled: most take less than a second. */
const cniGraceMs = 10_000;
/** Deadline of the whole shutdown: streams, plugins, calls, pulls. */
const endMsMax = 15_000;

/** An unhandled rejection is a bug, but must not end the daemon. */
function reportRejections(log: Log): void {
  process.on("unhandledRejection", (error) => {
    const stack = error instanceof Error ? error.stack : undefined;
    log.error("unhandled rejection", { error: messageOf(error), stack });
  });
}

export type Start = {
  /** Its config changes in place when it is reloaded. */
  loaded: LoadedConfig;
  /** Reads the configuration again. @throws CriError INVALID_ARGUMENT. */
  read: () => LoadedConfig;
  log: Log;
};

/** Runs the daemon until a signal ends it. */
export async function runDaemon(start: Start): Promise<void> {
  const { loaded, log } = start;
  for (const warning of loaded.warnings) log.warn(warning);
  reportRejections(log);
  await using stack = new AsyncDisposableStack();
  const service = stack.use(openService(log));
  service.recovering();
  const { config } = loaded;
  const context = await stage("start", () => startParts(start, stack));
  log.info("ready", {
    version,
    commit: build?.commit,
    hosts: config.hosts.join(" "),
    cgroups: `${context.cgroup.name} v${context.cgroup.version}`,
    config: loaded.files.join(" "),
  });
  reloadOnSignal(context, log);
  service.ready(config.hosts[0]!);
  const signal = await endSignal();
  service.ending();
  log.info("shutting down; containers continue", { signal });
  setTimeout(() => {
    log.error("the shutdown exceeds its deadline and is cut off", { afterMs: endMsMax });
    process.exit(1);
  }, endMsMax).unref();
}

/** Makes all parts and serves them. */
async function startParts(
  { loaded: { config }, read, log }: Start,
  stack: AsyncDisposableStack,
): Promise<Context> {
  let made: Context | undefined;
  dumpOnSignal({ state: config.state, log, context: () => made });
  const instance = await stage("start-folders", () => claimFolders(config, stack));
  applyOomScore(config, log);
  becomeSubreaper();
  const programs = join(config.state, "programs");
  await stage("start-programs", () => endLeftPrograms(programs, log));
  recordPrograms(programs);
  const context = await createContext({ config, read, log, instance }, stack);
  made = context;
  stack.use(reapOrphans(context));
  await startTracing(context, stack);
  const { calls, streams } = context;
  stack.use(
    returnMemory(() => ({ count: calls.count + streams.served, goesOn: calls.running > 0 })),
  );
  prepareNetnsFolder(config, log);
  const { promise: isReady, resolve: ready } = Promise.withResolvers<void>();
  if (config.containerdSocket !== "") await serveContainerd(context, stack, isReady);
  await stage("start-records", () => recoverRecords(context));
  await stage("start-monitor", () => context.monitor.connect());
  if (config.nri.support) {
    const { openNri } = await import("./cri/nri.ts");
    stack.use(await stage("start-nri", () => openNri(context, log.child("nri"))));
  }
  let isServing = false;
  await openMetrics(context, stack, () => isServing);
  await stage("start-sockets", async () => {
    await serve(context, stack);
    await serveMirror(context, stack);
  });
  if (config.imagesDir !== "") stack.use(loadImages(context));
  await writePidfile(config.pidfile, { stack, log: context.log });
  ready();
  isServing = true;
  detectFeatures(context.handlers, log);
  reportPrograms(config, log);
  context.health.problems().catch(() => {}); // logs what keeps pods from starting
  stack.use(startSweeps(context)); // after NRI: the plugins must learn of the pods that it ends
  return context;
}

/** Names a part of the start for dumps and metrics. */
function stage<T>(step: string, work: () => T | Promise<T>): Promise<T> {
  return activity("step", { step }, work);
}

async function startTracing(context: Context, stack: AsyncDisposableStack): Promise<void> {
  const names = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
  if (!names.some((name) => process.env[name])) return;
  const { openTracing } = await import("./trace/tracing.ts");
  const tracing = openTracing(process.env, context.log.child("trace"));
  if (tracing !== undefined) context.tracing = stack.use(tracing);
}

/** Called before the monitor starts, which inherits the value, and before it is read as the containers' lower bound. */
function applyOomScore({ oomScore }: Config, log: Log): void {
  if (oomScore === 0) return;
  const set = setOomScoreAdj(process.pid, oomScore, () => true);
  if (set === oomScore) return;
  log.warn("oom-score is not applied: to lower it needs CAP_SYS_RESOURCE", { oomScore, is: set });
}

type Given = { config: Config; read: () => LoadedConfig; log: Log; instance: string };

/** context: not called before all parts are there. */
function openMonitor(
  { config, log }: { config: Config; log: Log },
  context: () => Context,
): MonitorClient {
  const troubles = new LogTroubles({
    log: log.child("log"),
    onChange: (id, change) => logChanged(context(), id, change),
  });
  return new MonitorClient({
    state: config.state,
    program: ownProgram(),
    log: log.child("monitor"),
    onExit: (exit) => onExit(context(), exit),
    onHello: (hello) => syncWithMonitor(context(), hello),
    onLogs: (logs) => troubles.update(logs, nowMs()),
  });
}

async function createContext(
  { config, read, log, instance }: Given,
  stack: AsyncDisposableStack,
): Promise<Context> {
  const monitor = stack.use(openMonitor({ config, log }, () => context));
  monitor.startEarly();
  const mounts = cgroupMounts();
  const handlers = openHandlers(config, log);
  const images = stack.use(await stage("start-images", () => openImages({ config, log })));
  const security = await openSecurity({ config, log });
  const streams = stack.use(await openStreams({ config, log }, monitor));
  const onUnwritten = (problem: string) => log.error("a record was not written", { problem });
  const context: Context = {
    config,
    log: log.child("cri"),
    instance,
    bootId: bootId(),
    host: readHostInfo(mounts, security),
    handlers,
    sandboxes: new Store({
      ...sandboxRecords(join(config.graph, "sandboxes"), join(config.state, "records")),
      onUnwritten,
      onCommit: (before, after) => sandboxCommitted(context, before, after),
    }),
    containers: new Store({
      ...containerRecords(join(config.graph, "containers"), join(config.state, "records")),
      onUnwritten,
      onCommit: (before, after) => containerCommitted(context, before, after),
    }),
    images,
    cni: stack.use(openNetworks({ config, log })),
    cgroup: openCgroup(mounts, config, log),
    usernsAccess: new UsernsAccess(
      ["", "containers", "sandboxes"].map((name) => join(config.graph, name)),
    ),
    instruments: stack.use(new Instruments()),
    sampler: stack.use(new Sampler(() => sampledCgroups(context), config.statsCollectMs)),
    layers: stack.use(
      new DiskUsages(log.child("stats"), config.statsCollectMs, measurer(writtenFolders)),
    ),
    monitor,
    streams,
    tlsServers: { stream: streams.tls },
    history: stack.use(new PodHistory()),
    health: new Health(() => context),
    ...lazyParts(read, () => context),
    exits: new ExitWaiters(),
    events: new EventBus<PodEvent>({ eventsMax, subscribersMax }),
    eventClock: new EventClock(join(config.state, "event-clock"), onUnwritten),
    starting: new Map(),
    crowds: { pods: new Crowd("other pods"), containers: new Crowd("other containers") },
    levels: new Set(),
    calls: { count: 0, running: 0 },
    making: new SingleFlight(),
    ending: new SingleFlight(),
  };
  stack.defer(async () => {
    await Promise.all([context.sandboxes.flush(), context.containers.flush()]);
  });
  return context;
}

async function openSecurity({ config, log }: Pick<Given, "config" | "log">) {
  const { apparmor, problem } = await openApparmor(config.disableApparmor);
  if (problem !== undefined) log.warn(problem);
  const { selinux, problem: unlabelled } = openSelinux(config.selinuxEnabled);
  if (unlabelled !== undefined) log.warn(unlabelled);
  return { apparmor, selinux };
}

/** Parts that are loaded when they are used. */
function lazyParts(read: () => LoadedConfig, context: () => Context) {
  const reload = coalesced("another reload", async () =>
    (await import("./reload.ts")).reload(context(), read),
  );
  const debug: Context["debug"] = {
    dump: async () => (await import("./debug.ts")).dump(context()),
    profile: async (...args) => (await import("./debug.ts")).profile(...args),
  };
  return { reload, debug };
}

function openNetworks({ config, log }: Pick<Given, "config" | "log">): CniNetwork {
  const live = liveFields(config, {
    confDir: "cniConfDir",
    binDirs: "cniBinDirs",
    timeoutMs: "cniTimeoutMs",
    maxConfNum: "maxConfNum",
    podNetworks: "podNetworks",
  });
  const cacheDir = join(config.graph, "cni");
  return openCni(Object.assign(live, { cacheDir, log: log.child("cni"), graceMs: cniGraceMs }));
}

function openCgroup(mounts: CgroupMounts, config: Config, log: Log): CgroupDriver {
  const absent = absentControllers(mounts);
  if (absent.length > 0) {
    // Pods usually limit these; huge pages and block I/O are absent on many nodes.
    const isNeeded = absent.some((name) => ["cpu", "memory", "pids"].includes(name));
    log[isNeeded ? "warn" : "info"](
      "cgroup controllers are absent: their limits are refused, their statistics unset",
      { absent: absent.join(" ") },
    );
  }
  const driver = config.systemdCgroup ? systemdDriver : cgroupfsDriver;
  return driver(mounts, config.cgroupParent);
}

function openStreams(
  { config, log }: Pick<Given, "config" | "log">,
  monitor: MonitorClient,
): Promise<Streams> {
  const { streamServerAddress: address, streamPort: port, streamIdleMs: idleMs } = config;
  const { streamTlsCert: cert, streamTlsKey: key } = config;
  const tls = cert === "" ? undefined : { cert, key };
  const folder = join(config.state, "streams");
  return Streams.open({ monitor, log: log.child("stream"), folder, address, port, idleMs, tls });
}

function onExit(context: Context, exit: ExitRecord): void {
  reapIfChild(exit.pid); // it became this process's child if its monitor was killed
  commitExit(context, exit.id, exit).catch((error: unknown) => {
    const fields = { container: exit.id, error: messageOf(error) };
    context.log.error("the exit of a container was not committed, retrying in 1 s", fields);
    setTimeout(() => onExit(context, exit), commitAgainMs);
  });
}

/** Reaps processes that plugins and tools left; not a container's init, whose exit code is not recorded yet. */
function reapOrphans(context: Context): Disposable {
  const orphans = new Orphans();
  const timer = setInterval(() => {
    const inits = new Set(
      context.containers.list().map(({ phase }) => (phase.phase === "running" ? phase.pid : 0)),
    );
    for (const { pause } of context.sandboxes.list()) inits.add(pause?.pid ?? 0);
    try {
      orphans.reap((pid) => inits.has(pid));
    } catch (error) {
      // Without a free descriptor, for example; the next scan follows in a second.
      context.log.debug("looking for orphaned processes failed", { error: messageOf(error) });
    }
  }, orphanScanMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
