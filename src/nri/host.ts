// Hosts NRI plugins: delivers each event to all in the order of their indexes, and merges their answers.
//
// Decision: one event at a time, even for notifications. Upstream's differ plugin registers several times at
// different indexes and compares the events. Only validators, which run after all changes, are called
// concurrently, as upstream does.
import type { Config } from "../base/config.ts";
import { encodeMessage } from "../base/protobuf.ts";
import { CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { nri } from "../proto/nri.js";
import type {
  Container as NriContainer,
  ContainerAdjustment,
  PodSandbox as NriPod,
} from "../proto/nri_types.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import { UpdateApplier, type NriBackend } from "./apply_updates.ts";
import { checkAdjustment, checkUpdate } from "./check_answers.ts";
import {
  fromCri,
  nriContainer,
  nriPod,
  toCri,
  type ContainerSnapshot,
  type PodSnapshot,
  type ResourceChange,
} from "./convert.ts";
import { AdjustmentMerge } from "./merge_adjustments.ts";
import { FieldOwners } from "./field_owners.ts";
import { EventMessage, type Calls, type EventName, type Plugin, type Subject } from "./plugin.ts";
import { PluginSet } from "./plugin_set.ts";
import { ResourceUpdateMerge, UpdateMerge } from "./merge_updates.ts";

const api = nri.pkg.api.v1alpha1;

export type PluginState = {
  id: string;
  kind: "launched" | "external";
  version: string;
  events: string[];
  calls: [method: string, calls: Calls][];
  lastError: string;
};

/** The outcome of a request after this plugin, as if no plugin followed. plugin: index and name. */
export type PluginStep<Result> = { plugin: string; result: Result };

export class NriHost implements AsyncDisposable {
  readonly #log: Log;
  readonly #backend: NriBackend;
  readonly #updates: UpdateApplier;
  readonly #set: PluginSet;

  constructor(options: { config: Config["nri"]; log: Log; backend: NriBackend }) {
    this.#log = options.log;
    this.#backend = options.backend;
    this.#updates = new UpdateApplier(options.backend, options.log);
    this.#set = new PluginSet({ ...options, updates: this.#updates });
  }

  /** Starts the pre-installed plugins and opens the socket for others. */
  start(): Promise<void> {
    return this.#set.start();
  }

  /** Starts the pre-installed plugins of the configured folder (PluginSet.relaunch). */
  relaunch(): Promise<void> {
    return this.#set.relaunch();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#set[Symbol.asyncDispose]();
  }

  list(): PluginState[] {
    return this.#set.plugins.map((plugin) => ({
      id: plugin.id,
      kind: plugin.kind,
      version: plugin.version,
      events: plugin.eventNames(),
      calls: [...plugin.calls],
      lastError: plugin.lastError,
    }));
  }

  /** Whether no plugin would receive an event now. */
  get isEmpty(): boolean {
    return this.#set.isEmpty;
  }

  /** Whether a plugin in service subscribes to the event. */
  wants(event: EventName): boolean {
    return this.#set.plugins.some((plugin) => plugin.wants(event));
  }

  /** @throws CriError UNAVAILABLE if a required plugin is not in service. */
  checkRequired(what: string): void {
    this.#set.checkRequired(what);
  }

  /** To be held from a change's event until the change is recorded (PluginSet.gate). Throws as Gate.enter() does. */
  enter(signal: AbortSignal): Promise<Disposable> {
    return this.#set.gate.enter(signal);
  }

  /**
   * Delivers RunPodSandbox; if a plugin rejects the pod, all plugins get StopPodSandbox and RemovePodSandbox.
   * @throws CriError naming the plugin and its error.
   */
  async runPodSandbox(pod: PodSnapshot): Promise<void> {
    try {
      await this.#deliverAll("RunPodSandbox", pod);
    } catch (error) {
      await this.#podSandboxFailed(pod);
      throw error;
    }
  }

  /** Notifies of the stop and removal of a pod whose RunPodSandbox failed. */
  async #podSandboxFailed(pod: PodSnapshot): Promise<void> {
    await this.notify("StopPodSandbox", pod);
    await this.notify("RemovePodSandbox", pod);
  }

  /** @throws CriError naming the plugin and its error. */
  async startContainer(pod: PodSnapshot, container: ContainerSnapshot): Promise<void> {
    await this.#deliverAll("StartContainer", pod, container);
  }

  /** Delivers an event that plugins cannot reject; errors are logged. */
  async notify(event: EventName, pod: PodSnapshot, container?: ContainerSnapshot): Promise<void> {
    try {
      await this.#deliverAll(event, pod, container);
    } catch (error) {
      this.#log.warn(messageOf(error), { event });
    }
  }

  /**
   * Returns the merged adjustment of a container that is being created, also after each plugin that changed
   * something, and the container's resources in CRI's form. Applies plugins' updates of other containers.
   * @throws CriError for a plugin's rejection, a conflict, or a failed update.
   */
  async createContainer(
    podSnapshot: PodSnapshot,
    snapshot: ContainerSnapshot,
  ): Promise<{
    adjust: ContainerAdjustment;
    steps: PluginStep<ContainerAdjustment>[];
    resources: LinuxContainerResources;
  }> {
    const pod = nriPod(podSnapshot);
    const original = nriContainer(snapshot);
    const creation = new AdjustmentMerge(original);
    const steps: PluginStep<ContainerAdjustment>[] = [];
    {
      // Updates are applied after the turn: they wait for other changes, which may wait for a turn.
      using _ = await this.#set.turns.acquire();
      // Re-encoded only after a plugin has changed the container.
      let message = creationMessage(pod, creation);
      for (const plugin of this.#set.plugins) {
        const adjust = await this.#adjust(plugin, creation, message);
        if (adjust === undefined) continue;
        message = creationMessage(pod, creation);
        steps.push({ plugin: plugin.id, result: creation.adjustment() });
        const subject = { pod: podSnapshot, container: snapshot };
        this.#backend.adjusted?.({ ...subject, plugin: plugin.id, adjust });
      }
      await this.#validate(creation, { pod, container: original });
    }
    await this.#updates.applyAll("CreateContainer", creation.updates);
    this.#updates.evict(creation.evictions);
    const adjust = creation.adjustment();
    return { adjust, steps, resources: toCri(adjust.linux?.resources ?? {}).resources };
  }

  /** Merges the plugin's answer; returns its changes of the container, if there are any. */
  async #adjust(
    plugin: Plugin,
    creation: AdjustmentMerge,
    message: EventMessage,
  ): Promise<ContainerAdjustment | undefined> {
    let changes: ContainerAdjustment | undefined;
    await this.#set.deliver(plugin, message, (answer) => {
      const response = plugin.decoded(api.CreateContainerResponse, answer);
      checked(() => {
        if (response.adjust) checkAdjustment(response.adjust);
        for (const update of response.update) checkUpdate(update);
      });
      response.update = this.#updates.withoutStale(plugin.id, response.update, creation.id);
      creation.apply(plugin.id, response);
      // Plugins often send an empty adjustment.
      const bytes = encodeMessage(api.ContainerAdjustment, response.adjust ?? {});
      if (bytes.length > 0) changes = response.adjust!;
    });
    return changes;
  }

  /** Sends the merged adjustment and the owners of its fields to the validators. */
  async #validate(
    creation: AdjustmentMerge,
    subject: { pod: NriPod; container: NriContainer },
  ): Promise<void> {
    const { plugins } = this.#set;
    const message = new EventMessage("ValidateContainerAdjustment", subject, () =>
      encodeMessage(api.ValidateContainerAdjustmentRequest, {
        ...subject,
        adjust: creation.adjustment(),
        update: creation.updates.others(),
        owners: creation.owners.message(),
        plugins: plugins.map(({ name, index }) => ({ name, index })),
      }),
    );
    const answers = plugins.map((plugin) =>
      this.#set.deliver(plugin, message, (answer) => {
        const type = api.ValidateContainerAdjustmentResponse;
        const { reject, reason } = plugin.decoded(type, answer);
        if (!reject) return;
        throw new CriError("FAILED_PRECONDITION", `rejects the adjusted container: ${reason}`);
      }),
    );
    for (const answer of await Promise.allSettled(answers)) {
      if (answer.status === "rejected") throw answer.reason;
    }
  }

  /** Delivers StopContainer of an exited container, and applies plugins' updates of other containers. */
  async stopContainer(pod: PodSnapshot, container: ContainerSnapshot): Promise<void> {
    const updates = new UpdateMerge(new FieldOwners());
    try {
      await this.#deliverAll("StopContainer", pod, container, (plugin, answer) => {
        const { update } = plugin.decoded(api.StopContainerResponse, answer);
        checked(() => update.forEach(checkUpdate));
        updates.apply(plugin.id, this.#updates.withoutStale(plugin.id, update));
      });
      await this.#updates.applyAll("StopContainer", updates);
    } catch (error) {
      this.#log.warn(messageOf(error), { event: "StopContainer", container: container.id });
    }
  }

  /**
   * Returns the resources of CRI's UpdateContainerResources as changed by plugins, also after each that
   * changed something. Applies their updates of other containers.
   * @throws CriError for a plugin's rejection, a conflict, or a failed update.
   */
  async updateContainer(
    podSnapshot: PodSnapshot,
    snapshot: ContainerSnapshot,
    resources: LinuxContainerResources,
  ): Promise<{ change: ResourceChange; steps: PluginStep<ResourceChange>[] }> {
    const [pod, container] = [nriPod(podSnapshot), nriContainer(snapshot)];
    const merge = new ResourceUpdateMerge(snapshot.id, fromCri(resources));
    const steps: PluginStep<ResourceChange>[] = [];
    {
      using _ = await this.#set.turns.acquire();
      for (const plugin of this.#set.plugins) {
        const request = { pod, container, linux_resources: merge.updates.requested() };
        const message = new EventMessage("UpdateContainer", { pod, container }, () =>
          encodeMessage(api.UpdateContainerRequest, request),
        );
        await this.#set.deliver(plugin, message, (answer) => {
          const response = plugin.decoded(api.UpdateContainerResponse, answer);
          checked(() => response.update.forEach(checkUpdate));
          response.update = this.#updates.withoutStale(plugin.id, response.update);
          merge.apply(plugin.id, response);
        });
        const resources = merge.updates.requested();
        if (resources === request.linux_resources) continue;
        steps.push({ plugin: plugin.id, result: toCri(resources) });
      }
    }
    const plugins = merge.updates.pluginsOf(snapshot.id);
    const change = this.#updates.changeOf(snapshot.id, plugins, merge.updates.requested());
    await this.#updates.applyAll("UpdateContainer", merge.updates);
    this.#updates.evict(merge.evictions);
    return { change, steps };
  }

  /** Delivers UpdatePodSandbox before the update is applied. @throws CriError for a plugin's rejection. */
  async updatePodSandbox(
    podSnapshot: PodSnapshot,
    overhead: LinuxContainerResources,
    resources: LinuxContainerResources,
  ): Promise<void> {
    const pod = nriPod(podSnapshot);
    const message = new EventMessage("UpdatePodSandbox", { pod }, () =>
      encodeMessage(api.UpdatePodSandboxRequest, {
        pod,
        overhead_linux_resources: fromCri(overhead),
        linux_resources: fromCri(resources),
      }),
    );
    using _ = await this.#set.turns.acquire();
    for (const plugin of this.#set.plugins) await this.#set.deliver(plugin, message);
  }

  /** Delivers to all plugins in turn. @throws the first error of RunPodSandbox and StartContainer. */
  async #deliverAll(
    event: EventName,
    pod: PodSnapshot,
    container?: ContainerSnapshot,
    onAnswer: (plugin: Plugin, answer: Uint8Array) => void = () => {},
  ): Promise<void> {
    if (this.isEmpty) return;
    using _ = await this.#set.turns.acquire();
    const subject: Subject = { pod: nriPod(pod) };
    if (container !== undefined) subject.container = nriContainer(container);
    const message = new EventMessage(event, subject);
    const mayReject = event === "RunPodSandbox" || event === "StartContainer";
    for (const plugin of this.#set.plugins) {
      try {
        await this.#set.deliver(plugin, message, (answer) => onAnswer(plugin, answer));
      } catch (error) {
        if (mayReject) throw error;
        this.#log.warn(messageOf(error), { event });
      }
    }
  }
}

function creationMessage(pod: NriPod, creation: AdjustmentMerge): EventMessage {
  const subject = { pod, container: creation.container() };
  return new EventMessage("CreateContainer", subject, () =>
    encodeMessage(api.CreateContainerRequest, subject),
  );
}

/**
 * Validates an answer. @throws CriError FAILED_PRECONDITION, which fails the request and keeps the plugin in service:
 * plugins copy annotations of pods into their answers, and no pod may disconnect a plugin that others need.
 */
function checked(check: () => void): void {
  try {
    check();
  } catch (cause) {
    throw new CriError("FAILED_PRECONDITION", `invalid answer: ${messageOf(cause)}`, { cause });
  }
}
