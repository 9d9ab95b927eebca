// Interface between the RPCs and NRI plugins (nri.ts); events and their order match containerd.
import type { ResourceChange } from "../nri/convert.ts";
import type { PluginState, PluginStep } from "../nri/host.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import type { OciSpec } from "../spec/oci.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";

export type PluginUpdate = { change: ResourceChange; steps: PluginStep<ResourceChange>[] };

/**
 * Events that plugins may refuse throw a CriError with the plugin's name and message; the others never throw.
 * Events of one container are delivered in order; those without a promise are delivered in the background.
 */
export type NriEvents = {
  plugins(): PluginState[];
  /** Starts the pre-installed plugins of the configured folder (PluginSet.relaunch). */
  relaunch(): Promise<void>;
  /**
   * Keeps plugins from synchronizing between an event and its record. Call it before locking a sandbox or
   * container.
   */
  enter(signal: AbortSignal): Promise<Disposable>;

  /** May be refused; the pod is not listed yet. */
  runPodSandbox(sandbox: Sandbox): Promise<void>;
  /** Delivered once per pod that plugins know, after the stops of all its containers. */
  stopPodSandbox(sandbox: Sandbox): Promise<void>;
  /** Delivered once, and after StopPodSandbox, which is delivered first if it was not yet. */
  removePodSandbox(sandbox: Sandbox): Promise<void>;
  /** May be refused. */
  updatePodSandbox(
    sandbox: Sandbox,
    overhead: LinuxContainerResources,
    resources: LinuxContainerResources,
  ): Promise<void>;
  updatedPodSandbox(sandbox: Sandbox): Promise<void>;

  /** Returns the container and its spec as changed by plugins; may be refused. */
  createContainer(
    sandbox: Sandbox,
    container: Container,
    spec: OciSpec,
  ): Promise<{
    container: Container;
    spec: OciSpec;
    /** Writes what each plugin changed into the container's folder. */
    keepChanges: () => Promise<void>;
  }>;
  createdContainer(container: Container, spec: OciSpec): void;
  /** CreateContainer failed: delivers stop and removal to plugins that saw its creation. */
  abandonedContainer(sandbox: Sandbox, id: string): Promise<void>;
  /** True where a plugin wants StartContainer. */
  readonly wantsStarts: boolean;
  /** pid: of the container's init, which waits for the start; 0: not created yet. May be refused. */
  startContainer(sandbox: Sandbox, container: Container, pid: number): Promise<void>;
  startedContainer(container: Container): void;
  /** Delivered once per container; called when its exit is committed. */
  stoppedContainer(container: Container): void;
  /** Delivered once, and after StopContainer, which is delivered first if it was not yet. */
  removeContainer(container: Container): Promise<void>;
  /**
   * Returns the resources to set, and what each plugin has made of the given ones; may be refused. Hold no
   * container lock: plugins update others.
   */
  updateContainer(container: Container, resources: LinuxContainerResources): Promise<PluginUpdate>;
  /** given: as updateContainer got it. */
  updatedContainer(
    id: string,
    given: LinuxContainerResources,
    steps: PluginUpdate["steps"],
  ): Promise<void>;
  /** Its config.json was rewritten. */
  changedSpec(id: string): void;
};
