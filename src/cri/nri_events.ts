// What the RPCs tell NRI plugins, and where: as containerd does it. Without nri-support there is none of it.
import type { ResourceChange } from "../nri/convert.ts";
import type { PluginState } from "../nri/host.ts";
import type { LinuxContainerResources } from "../proto/types.ts";
import type { OciSpec } from "../spec/oci.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";

/**
 * Those that may be refused throw a CriError with the plugin and what it said; the others never throw.
 * Events of one container keep their order; those without a promise are told of while the call goes on.
 */
export type NriEvents = {
  plugins(): PluginState[];
  /**
   * From an event to its record no plugin is told of all that there is. Taken before any lock of a
   * sandbox or container.
   */
  enter(): Promise<Disposable>;

  /** May be refused; nobody sees the pod yet. */
  runPodSandbox(sandbox: Sandbox): Promise<void>;
  /** Tells plugins, once for a pod, after all of its containers' ends; not of a pod unknown to them. */
  stopPodSandbox(sandbox: Sandbox): Promise<void>;
  /** The same; a pod that was not stopped for the plugins is stopped first. */
  removePodSandbox(sandbox: Sandbox): Promise<void>;
  /** May be refused. */
  updatePodSandbox(
    sandbox: Sandbox,
    overhead: LinuxContainerResources,
    resources: LinuxContainerResources,
  ): Promise<void>;
  updatedPodSandbox(sandbox: Sandbox): Promise<void>;

  /** The container and its spec as plugins change them; may be refused. */
  createContainer(
    sandbox: Sandbox,
    container: Container,
    spec: OciSpec,
  ): Promise<{ container: Container; spec: OciSpec }>;
  createdContainer(container: Container, spec: OciSpec): void;
  /** CreateContainer has failed; if plugins were told of it, they are told that it is gone. */
  containerGone(sandbox: Sandbox, id: string): Promise<void>;
  /** May be refused. */
  startContainer(sandbox: Sandbox, container: Container): Promise<void>;
  startedContainer(container: Container): void;
  /** Tells plugins, once for a container, that its end is on record; called at the commit. */
  stoppedContainer(container: Container): void;
  /** The same as with pods. */
  removeContainer(container: Container): Promise<void>;
  /** The resources to set; may be refused. No lock of a container is held: plugins change others too. */
  updateContainer(
    container: Container,
    resources: LinuxContainerResources,
  ): Promise<ResourceChange>;
  updatedContainer(id: string): void;
  /** Its bundle was written anew. */
  changedSpec(id: string): void;
};
