// The NRI host: each event to all plugins, in the order of their indexes, and what they make of it.
//
// Decision: one request at a time, also of what has happened already. Upstream's differ registers several
// times at several indexes, and compares what each of them hears. Only validators, whose answers come
// after all changes, are asked at once, as upstream does.
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
import { NoAnswer } from "../sys/ttrpc.ts";
import { UpdateApplier, refuseOthers, type NriBackend } from "./apply_updates.ts";
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

type Options = { config: Config["nri"]; log: Log; world: NriBackend };

export class NriHost implements AsyncDisposable {
  readonly #log: Log;
  readonly #changes: UpdateApplier;
  readonly #set: PluginSet;

  constructor(options: Options) {
    this.#log = options.log;
    this.#changes = new UpdateApplier(options.world, options.log);
    this.#set = new PluginSet({ ...options, changes: this.#changes });
  }

  /** Starts the pre-installed plugins and opens the socket for others. */
  start(): Promise<void> {
    return this.#set.start();
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

  /** Whether there is nobody to tell of what happens now. */
  get isEmpty(): boolean {
    return this.#set.isEmpty;
  }

  /** @throws CriError UNAVAILABLE when a plugin that must be asked is not there. */
  checkRequired(what: string): void {
    this.#set.checkRequired(what);
  }

  /** For a change, from its event to its record (PluginSet.gate). */
  enter(): Promise<Disposable> {
    return this.#set.gate.enter();
  }

  /**
   * Each plugin may refuse the pod; those that were told of it are then told that it is gone.
   * @throws CriError with the plugin and what it said.
   */
  async runPodSandbox(pod: PodSnapshot): Promise<void> {
    try {
      await this.#tell("RunPodSandbox", pod);
    } catch (error) {
      await this.podSandboxGone(pod);
      throw error;
    }
  }

  /** Stop and Remove of a pod whose RunPodSandbox has failed. */
  async podSandboxGone(pod: PodSnapshot): Promise<void> {
    await this.notify("StopPodSandbox", pod);
    await this.notify("RemovePodSandbox", pod);
  }

  /** @throws CriError with the plugin and what it said. */
  async startContainer(pod: PodSnapshot, container: ContainerSnapshot): Promise<void> {
    await this.#tell("StartContainer", pod, container);
  }

  /** Of what has happened, and of what no plugin may hold up: errors are told of in the log. */
  async notify(event: EventName, pod: PodSnapshot, container?: ContainerSnapshot): Promise<void> {
    try {
      await this.#tell(event, pod, container);
    } catch (error) {
      this.#log.warn(messageOf(error), { event });
    }
  }

  /**
   * UpdateApplier of a container that is being created, and those of its resources that CRI has a word for;
   * changes of other containers are done.
   * @throws CriError for a plugin that refuses it, a conflict, or an update that fails.
   */
  async createContainer(
    podSnapshot: PodSnapshot,
    snapshot: ContainerSnapshot,
  ): Promise<{ adjust: ContainerAdjustment; resources: LinuxContainerResources }> {
    const pod = nriPod(podSnapshot);
    const original = nriContainer(snapshot);
    const creation = new AdjustmentMerge(original);
    {
      // The updates come after: they wait for other changes, and those may wait for their turn here.
      using _ = await this.#set.turns.acquire();
      // What no plugin has changed is encoded once.
      let message = creationMessage(pod, creation);
      for (const plugin of this.#set.plugins) {
        const isChanged = await this.#ask(plugin, creation, message);
        if (isChanged) message = creationMessage(pod, creation);
      }
      await this.#validate(creation, { pod, container: original });
    }
    await this.#changes.applyAll("CreateContainer", creation.updates.others());
    this.#changes.evict(creation.evictions);
    const adjust = creation.adjustment();
    return { adjust, resources: toCri(adjust.linux?.resources ?? {}).resources };
  }

  /** Whether the plugin changes the container. */
  async #ask(plugin: Plugin, creation: AdjustmentMerge, message: EventMessage): Promise<boolean> {
    let isChanged = false;
    await this.#set.deliver(plugin, message, (answer) => {
      const response = plugin.decoded(api.CreateContainerResponse, answer);
      checked(() => {
        if (response.adjust) checkAdjustment(response.adjust);
        for (const update of response.update) checkUpdate(update);
      });
      response.update = this.#changes.live(plugin.id, response.update, creation.id);
      creation.apply(plugin.id, response);
      // Many answer an adjustment that has nothing in it.
      const bytes = encodeMessage(api.ContainerAdjustment, response.adjust ?? {});
      isChanged = bytes.length > 0;
    });
    return isChanged;
  }

  /** Validators see the whole result, and who has set what. */
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
        throw new CriError("FAILED_PRECONDITION", `rejects the container as changed: ${reason}`);
      }),
    );
    for (const answer of await Promise.allSettled(answers)) {
      if (answer.status === "rejected") throw answer.reason;
    }
  }

  /** The container has ended; plugins may change others. */
  async stopContainer(pod: PodSnapshot, container: ContainerSnapshot): Promise<void> {
    const updates = new UpdateMerge(new FieldOwners());
    try {
      await this.#tell("StopContainer", pod, container, (plugin, answer) => {
        const { update } = plugin.decoded(api.StopContainerResponse, answer);
        checked(() => update.forEach(checkUpdate));
        updates.apply(plugin.id, this.#changes.live(plugin.id, update));
      });
      await this.#changes.applyAll("StopContainer", updates.others());
    } catch (error) {
      this.#log.warn(messageOf(error), { event: "StopContainer", container: container.id });
    }
  }

  /**
   * CRI's UpdateContainerResources as plugins change it; those of other containers are done.
   * @throws CriError for a plugin that refuses it, a conflict, or an update that fails.
   */
  async updateContainer(
    podSnapshot: PodSnapshot,
    snapshot: ContainerSnapshot,
    resources: LinuxContainerResources,
  ): Promise<ResourceChange> {
    const [pod, container] = [nriPod(podSnapshot), nriContainer(snapshot)];
    const asked = new ResourceUpdateMerge(snapshot.id, fromCri(resources));
    {
      using _ = await this.#set.turns.acquire();
      for (const plugin of this.#set.plugins) {
        const request = { pod, container, linux_resources: asked.updates.requested() };
        const message = new EventMessage("UpdateContainer", { pod, container }, () =>
          encodeMessage(api.UpdateContainerRequest, request),
        );
        await this.#set.deliver(plugin, message, (answer) => {
          const response = plugin.decoded(api.UpdateContainerResponse, answer);
          checked(() => response.update.forEach(checkUpdate));
          response.update = this.#changes.live(plugin.id, response.update);
          asked.apply(plugin.id, response);
        });
      }
    }
    const { others, ...wanted } = toCri(asked.updates.requested());
    refuseOthers(snapshot.id, others);
    await this.#changes.applyAll("UpdateContainer", asked.updates.others());
    this.#changes.evict(asked.evictions);
    return wanted;
  }

  /** CRI's UpdatePodSandboxResources, before it is done. @throws CriError for a plugin that refuses. */
  async updatePodSandbox(
    podSnapshot: PodSnapshot,
    overhead: LinuxContainerResources,
    resources: LinuxContainerResources,
  ): Promise<void> {
    const pod = nriPod(podSnapshot);
    const request = {
      pod,
      overhead_linux_resources: fromCri(overhead),
      linux_resources: fromCri(resources),
    };
    const message = new EventMessage("UpdatePodSandbox", { pod }, () =>
      encodeMessage(api.UpdatePodSandboxRequest, request),
    );
    using _ = await this.#set.turns.acquire();
    for (const plugin of this.#set.plugins) await this.#set.deliver(plugin, message);
  }

  /** To all plugins, one after the other. @throws the first error of RunPodSandbox and StartContainer. */
  async #tell(
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
    const mayRefuse = event === "RunPodSandbox" || event === "StartContainer";
    for (const plugin of this.#set.plugins) {
      try {
        await this.#set.deliver(plugin, message, (answer) => onAnswer(plugin, answer));
      } catch (error) {
        if (mayRefuse) throw error;
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

/** What a plugin may not ask for closes it, like garbage. */
function checked(check: () => void): void {
  try {
    check();
  } catch (cause) {
    throw new NoAnswer("UNAVAILABLE", `it asks for what cannot be: ${messageOf(cause)}`, { cause });
  }
}
