// Connects the RPCs to NRI plugins: converts records and specs for plugins, delivers events in order, and
// applies the plugins' changes.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import { KeyedLock } from "../base/keyed_lock.ts";
import { type Log, logFailure } from "../base/log.ts";
import { printable, shorten } from "../base/text.ts";
import { blockioClass } from "../node/blockio.ts";
import { resolveCdi } from "../node/cdi.ts";
import { prepareRdtClass } from "../node/rdt.ts";
import { resctrlFolder } from "../node/resctrl.ts";
import type { ContainerChange, NriBackend } from "../nri/apply_updates.ts";
import {
  addChanges,
  creationChanges,
  ownChange,
  requestChanges,
} from "../nri/container_changes.ts";
import type { ContainerSnapshot, PodSnapshot } from "../nri/convert.ts";
import { NriHost, type PluginState, type PluginStep } from "../nri/host.ts";
import type { ContainerAdjustment } from "../proto/nri_types.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import { adjustedSpec } from "../spec/nri_adjustment.ts";
import { applyCdi } from "../spec/cdi.ts";
import type { OciSpec } from "../spec/oci.ts";
import { adjustedRecord } from "../spec/resources.ts";
import { namespaceOptions } from "../spec/namespace_options.ts";
import { evicted, type Container } from "../state/container.ts";
import { podName, type Sandbox } from "../state/sandbox.ts";
import { readSpec } from "./bundle.ts";
import { withClasses } from "./annotated_classes.ts";
import { stopContainerProcess } from "./container_end.ts";
import { changeResources } from "./container_update.ts";
import type { Context } from "./context.ts";
import type { NriEvents, PluginUpdate } from "./nri_events.ts";
import { NriLifecycle } from "../nri/lifecycle.ts";
import { pluginContainer, pluginPod } from "./nri_snapshots.ts";
import { getHandler } from "./runtime_handlers.ts";
import { containersOf } from "./sandbox_lookup.ts";

/** A container that is being created, and its spec before any plugin. */
type Creation = { sandbox: Sandbox; container: Container; spec: OciSpec };

/** Stop timeout of evicted containers; the default of kubelets. */
const evictionGraceMs = 30_000;
const reasonBytesMax = 1_000;

class Nri implements NriEvents, AsyncDisposable {
  readonly #context: Context;
  readonly #host: NriHost;
  /** Specs of existing containers, read from their bundles when first needed. */
  readonly #specs = new Map<string, OciSpec>();
  /** Containers whose CreateContainer was delivered, but no later event. */
  readonly #creating = new Map<string, ContainerSnapshot>();
  /** Delivers each container's events one after another. */
  readonly #order = new KeyedLock("NRI events of container");
  readonly #pods = new NriLifecycle();
  readonly #containers = new NriLifecycle();

  constructor(context: Context, host: NriHost) {
    this.#context = context;
    this.#host = host;
    for (const { id, ending, torndown } of context.sandboxes.list()) {
      // Plugins never saw a pod whose RunPodSandbox failed.
      if (ending !== "undo") this.#pods.began(id, torndown ? "stopped" : "live");
    }
    for (const { id, phase } of context.containers.list()) {
      this.#containers.began(id, phase.phase === "exited" ? "stopped" : "live");
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#host[Symbol.asyncDispose]();
  }

  plugins(): PluginState[] {
    return this.#host.list();
  }

  relaunch(): Promise<void> {
    return this.#host.relaunch();
  }

  enter(signal: AbortSignal): Promise<Disposable> {
    return this.#host.enter(signal);
  }

  async runPodSandbox(sandbox: Sandbox): Promise<void> {
    this.#host.checkRequired("RunPodSandbox");
    if (!this.#host.isEmpty) await this.#host.runPodSandbox(this.#pod(sandbox));
    this.#pods.began(sandbox.id);
  }

  async stopPodSandbox(sandbox: Sandbox): Promise<void> {
    if (!this.#pods.stop(sandbox.id) || this.#host.isEmpty) return;
    const containers = containersOf(this.#context, sandbox.id);
    await Promise.all(containers.map(({ id }) => this.#order.run(id, undefined, async () => {})));
    await this.#host.notify("StopPodSandbox", this.#pod(sandbox));
  }

  async removePodSandbox(sandbox: Sandbox): Promise<void> {
    await this.stopPodSandbox(sandbox);
    if (!this.#pods.remove(sandbox.id) || this.#host.isEmpty) return;
    await this.#host.notify("RemovePodSandbox", this.#pod(sandbox));
  }

  async updatePodSandbox(
    sandbox: Sandbox,
    overhead: LinuxContainerResources,
    resources: LinuxContainerResources,
  ): Promise<void> {
    if (this.#host.isEmpty) return;
    await this.#host.updatePodSandbox(this.#pod(sandbox), overhead, resources);
  }

  async updatedPodSandbox(sandbox: Sandbox): Promise<void> {
    if (this.#host.isEmpty) return;
    await this.#host.notify("PostUpdatePodSandbox", this.#pod(sandbox));
  }

  async createContainer(
    sandbox: Sandbox,
    container: Container,
    spec: OciSpec,
  ): ReturnType<NriEvents["createContainer"]> {
    this.#host.checkRequired("CreateContainer");
    if (this.#host.isEmpty) return { container, spec, keepChanges: async () => {} };
    const snapshot = pluginContainer(container, spec);
    this.#creating.set(container.id, snapshot);
    const answer = await this.#host.createContainer(this.#pod(sandbox), snapshot);
    const { adjust, steps, resources } = answer;
    const blockio = adjust.linux?.resources?.blockio_class?.value;
    const rdt = adjust.linux?.resources?.rdt_class?.value;
    if (rdt) prepareRdtClass(this.#context.config.rdtConfigFile, rdt);
    const parts = { sandbox, container, spec };
    const changed = await this.#adjusted(parts, adjust);
    const limited = withClasses(withResources(container, resources), { blockio, rdt });
    const cgroupsPath = adjust.linux?.cgroups_path;
    if (cgroupsPath) this.#context.cgroup.pathsOf(cgroupsPath); // throws for an invalid path
    const specs = await this.#specsAfter(parts, steps, changed);
    return {
      container: cgroupsPath ? { ...limited, cgroupsPath } : limited,
      spec: changed,
      keepChanges: () =>
        addChanges(kept(this.#context, container.id), () => creationChanges(spec, specs)),
    };
  }

  /** Returns the spec with the merged adjustment. */
  async #adjusted({ sandbox, container, spec }: Creation, adjust: ContainerAdjustment) {
    const { host, config } = this.#context;
    const names = (adjust.CDI_devices ?? []).map(({ name }) => name ?? "");
    const blockio = adjust.linux?.resources?.blockio_class?.value;
    return adjustedSpec(await this.#withCdi(sandbox, spec, names), adjust, {
      host,
      ociVersion: getHandler(this.#context, container.runtimeHandler).support.ociVersion ?? "1.0.0",
      ...(blockio ? { blockIO: blockioClass(config.blockioConfigFile, blockio) } : {}),
      resctrl: existsSync(join(resctrlFolder, "schemata")),
      restrictOomScoreAdj: config.restrictOomScoreAdj,
    });
  }

  /** Returns the spec after each plugin; undefined where only a later plugin's change made it valid. */
  async #specsAfter(
    parts: Creation,
    steps: readonly PluginStep<ContainerAdjustment>[],
    last: OciSpec,
  ): Promise<PluginStep<OciSpec | undefined>[]> {
    const earlier = steps.slice(0, -1).map(async ({ plugin, result }) => {
      const spec = await this.#adjusted(parts, result).catch(() => undefined);
      return { plugin, result: spec };
    });
    const ends = steps.slice(-1).map(({ plugin }) => ({ plugin, result: last }));
    return [...(await Promise.all(earlier)), ...ends];
  }

  async #withCdi(sandbox: Sandbox, spec: OciSpec, names: string[]): Promise<OciSpec> {
    if (names.length === 0) return spec;
    const { enableCdi, cdiSpecDirs } = this.#context.config;
    if (!enableCdi) {
      throw new CriError(
        "FAILED_PRECONDITION",
        `an NRI plugin adds CDI device ${names[0]}: CDI is off (set enable-cdi in daemon.json)`,
      );
    }
    const { user } = namespaceOptions(sandbox.config);
    return applyCdi(spec, await resolveCdi(names, cdiSpecDirs), user);
  }

  createdContainer(container: Container, spec: OciSpec): void {
    this.#creating.delete(container.id);
    this.#containers.began(container.id);
    if (this.#host.isEmpty) return;
    this.#specs.set(container.id, spec);
    this.#background(this.#notify("PostCreateContainer", container));
  }

  async abandonedContainer(sandbox: Sandbox, id: string): Promise<void> {
    const snapshot = this.#creating.get(id);
    if (snapshot === undefined) return;
    this.#creating.delete(id);
    const pod = this.#pod(sandbox);
    await this.#host.stopContainer(pod, snapshot);
    await this.#host.notify("RemoveContainer", pod, snapshot);
  }

  get wantsStarts(): boolean {
    return this.#host.wants("StartContainer");
  }

  async startContainer(sandbox: Sandbox, container: Container, pid: number): Promise<void> {
    if (this.#host.isEmpty) return;
    await this.#order.run(container.id, undefined, async () => {
      const snapshot = { ...(await this.#snapshot(container)), pid };
      await this.#host.startContainer(this.#pod(sandbox), snapshot);
    });
  }

  startedContainer(container: Container): void {
    this.#background(this.#notify("PostStartContainer", container));
  }

  stoppedContainer(container: Container): void {
    if (!this.#containers.stop(container.id)) return;
    this.#background(
      this.#deliver("StopContainer", container, (pod, snapshot) =>
        this.#host.stopContainer(pod, snapshot),
      ),
    );
  }

  async removeContainer(container: Container): Promise<void> {
    this.stoppedContainer(container); // for a container that was never started
    if (this.#containers.remove(container.id)) await this.#notify("RemoveContainer", container);
    this.#specs.delete(container.id);
  }

  async updateContainer(
    container: Container,
    resources: LinuxContainerResources,
  ): Promise<PluginUpdate> {
    if (this.#host.isEmpty) return { change: { resources }, steps: [] };
    const sandbox = this.#context.sandboxes.get(container.sandboxId);
    return await this.#order.run(container.id, undefined, async () => {
      const snapshot = await this.#snapshot(container);
      return await this.#host.updateContainer(this.#pod(sandbox), snapshot, resources);
    });
  }

  async updatedContainer(
    id: string,
    given: LinuxContainerResources,
    steps: PluginUpdate["steps"],
  ): Promise<void> {
    const container = this.#context.containers.find(id);
    if (container === undefined) return;
    this.#background(this.#notify("PostUpdateContainer", container));
    await addChanges(kept(this.#context, id), () =>
      requestChanges(this.#context.host, given, steps),
    );
  }

  changedSpec(id: string): void {
    this.#specs.delete(id);
  }

  #notify(
    event: "PostCreateContainer" | "PostStartContainer" | "PostUpdateContainer" | "RemoveContainer",
    container: Container,
  ): Promise<void> {
    return this.#deliver(event, container, (pod, snapshot) =>
      this.#host.notify(event, pod, snapshot),
    );
  }

  /** Never throws. */
  #deliver(
    event: string,
    container: Container,
    send: (pod: PodSnapshot, container: ContainerSnapshot) => Promise<void>,
  ): Promise<void> {
    // A plugin that has disconnected since may still be processing an earlier event.
    if (this.#host.isEmpty && !this.#order.isHeld(container.id)) return Promise.resolve();
    return this.#order.run(container.id, undefined, async () => {
      try {
        const sandbox = this.#context.sandboxes.get(container.sandboxId);
        await send(this.#pod(sandbox), await this.#snapshot(container));
      } catch (error) {
        const fields = { event, container: container.id, error: messageOf(error) };
        this.#context.log.warn("delivering an NRI event failed", fields);
      }
    });
  }

  #background(delivery: Promise<void>): void {
    delivery.catch(logFailure(this.#context.log, "delivering an NRI event failed"));
  }

  #pod(sandbox: Sandbox): PodSnapshot {
    return pluginPod(this.#context, sandbox);
  }

  async #snapshot(container: Container): Promise<ContainerSnapshot> {
    const { id } = container;
    const spec = this.#specs.get(id) ?? (await readSpec(this.#context, id));
    if (this.#context.containers.find(id) !== undefined) this.#specs.set(id, spec);
    return pluginContainer(container, spec);
  }

  /** All live pods and containers, for a plugin that connects. */
  async state(): Promise<{ pods: PodSnapshot[]; containers: ContainerSnapshot[] }> {
    const { sandboxes, containers, log } = this.#context;
    const live = containers.list().filter(({ id }) => this.#containers.isLive(id));
    const snapshots: ContainerSnapshot[] = [];
    for (const container of live) {
      try {
        snapshots.push(await this.#snapshot(container));
      } catch (error) {
        const fields = { container: container.id, error: messageOf(error) };
        log.warn("container is left out of NRI synchronization", fields);
      }
    }
    const pods = sandboxes.list().filter(({ id }) => this.#pods.isLive(id));
    return { pods: pods.map((sandbox) => this.#pod(sandbox)), containers: snapshots };
  }
}

/** Starts the pre-installed plugins, listens for others, and sets context.nri. */
export async function openNri(context: Context, log: Log): Promise<AsyncDisposable> {
  const backend: NriBackend = {
    state: () => nri.state(),
    isLive: (id) => (context.containers.find(id)?.phase.phase ?? "exited") !== "exited",
    update: (change) => update(context, change),
    evict: (id, reason) => evict(context, id, reason),
    adjusted: ({ pod, container, plugin, adjust }) => {
      const name = container.config.metadata?.name ?? "";
      const of = { pod: podName(pod.config) ?? pod.id, container: name };
      context.history.adjusted(of, plugin, adjust);
    },
  };
  const host = new NriHost({ config: context.config.nri, log, backend });
  await using undo = new AsyncDisposableStack();
  const nri = undo.use(new Nri(context, host));
  context.nri = nri; // before any plugin starts: an exit while the first one synchronizes is reported to it
  await host.start();
  undo.move();
  return nri;
}

function kept({ containers, log }: Context, id: string) {
  return { folder: containers.folderOf(id), log };
}

async function update(context: Context, { id, plugin, ...change }: ContainerChange): Promise<void> {
  const signal = AbortSignal.timeout(context.config.runtimeTimeoutMs);
  const container = context.containers.get(id);
  const { before, after } = await changeResources(context, container.id, change, { signal });
  await addChanges(kept(context, container.id), () => ownChange(plugin, before, after));
}

async function evict(context: Context, id: string, reason: string): Promise<void> {
  const container = context.containers.get(id);
  const shown = shorten(printable(reason), reasonBytesMax);
  await context.containers.update(container.id, (old) => evicted(old, shown));
  const signal = AbortSignal.timeout(evictionGraceMs + context.config.runtimeTimeoutMs);
  await stopContainerProcess(context, container.id, evictionGraceMs, signal);
}

/** Later updates start from the resources on record (container_update.ts). */
function withResources(container: Container, given: LinuxContainerResources): Container {
  const { config } = container;
  const resources = adjustedRecord(config.linux?.resources ?? {}, given);
  return { ...container, config: { ...config, linux: { ...config.linux, resources } } };
}
