// Applies plugins' updates and evictions to existing containers.
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type {
  ContainerAdjustment,
  ContainerEviction,
  ContainerUpdate,
  LinuxResources,
  UpdateContainersRequest,
  UpdateContainersResponse,
} from "../proto/nri_types.ts";
import { checkUpdate } from "./check_answers.ts";
import type { UpdateMerge } from "./merge_updates.ts";
import { toCri, type ContainerSnapshot, type PodSnapshot, type ResourceChange } from "./convert.ts";

/** Bound of the warnings that are remembered. */
const ignoredMax = 100;

/** A resource change of an existing container. plugin: index and name, of several joined by commas. */
export type ContainerChange = ResourceChange & { id: string; plugin: string };

/** Gives the NRI host access to pods and containers. */
export type NriBackend = {
  /** Lists pods and containers for Synchronize, without exited containers. */
  state: () => Promise<{ pods: PodSnapshot[]; containers: ContainerSnapshot[] }>;
  /** Whether the container exists and has not exited. */
  isLive: (id: string) => boolean;
  /** Applies the change completely or not at all. @throws CriError */
  update: (change: ContainerChange) => Promise<void>;
  evict: (id: string, reason: string) => Promise<void>;
  /** Called for each plugin that changes a container at its creation. */
  adjusted?: (change: Adjusted) => void;
};

export type Adjusted = {
  pod: PodSnapshot;
  container: ContainerSnapshot;
  /** Index and name. */
  plugin: string;
  adjust: ContainerAdjustment;
};

export class UpdateApplier {
  readonly #backend: NriBackend;
  readonly #log: Log;
  /** Ignored fields that the log has, by plugin: some plugins send them in each update. */
  readonly #ignored = new Set<string>();

  constructor(backend: NriBackend, log: Log) {
    this.#backend = backend;
    this.#log = log;
  }

  /**
   * Applies updates that a plugin requests outside of an event, and returns those that failed.
   * @throws CriError INVALID_ARGUMENT for an invalid update; then none is applied.
   */
  async applyUnsolicited(
    plugin: string,
    request: UpdateContainersRequest,
  ): Promise<UpdateContainersResponse> {
    const failed: ContainerUpdate[] = [];
    for (const update of request.update ?? []) checkUpdate(update);
    for (const update of request.update ?? []) {
      try {
        await this.#apply(update, plugin);
      } catch (error) {
        failed.push(update);
        const fields = { plugin, container: update.container_id ?? "" };
        this.#log.warn("NRI update failed", { ...fields, error: messageOf(error) });
      }
    }
    this.evict(request.evict ?? []);
    return { failed };
  }

  /**
   * Drops updates of containers that have exited, do not exist yet, or do not exist at all: such updates must not fail
   * the request.
   * creating: the container being created, whose update is kept (and rejected when it is merged).
   */
  withoutStale(
    plugin: string,
    updates: readonly ContainerUpdate[],
    creating?: string,
  ): ContainerUpdate[] {
    return updates.filter(({ container_id }) => {
      const id = container_id ?? "";
      if (id === creating || this.#backend.isLive(id)) return true;
      const error = "the container does not exist, has exited, or is still being created";
      this.#log.warn("NRI update dropped", { plugin, container: id, error });
      return false;
    });
  }

  /** @throws CriError of the first failed update of a live container without ignore_failure. */
  async applyAll(
    request: string,
    updates: Pick<UpdateMerge, "others" | "pluginsOf">,
  ): Promise<void> {
    for (const update of updates.others()) {
      try {
        await this.#apply(update, updates.pluginsOf(update.container_id ?? ""));
      } catch (error) {
        const id = update.container_id ?? "";
        if (!update.ignore_failure && this.#backend.isLive(id)) {
          const text = `${request}: update of container ${id} failed: ${messageOf(error)}`;
          throw new CriError(codeOf(error), text, { cause: error });
        }
        this.#log.info("failed NRI update ignored", { container: id, error: messageOf(error) });
      }
    }
  }

  async #apply(update: ContainerUpdate, plugin: string): Promise<void> {
    const id = update.container_id ?? "";
    const change = this.changeOf(id, plugin, update.linux?.resources ?? {});
    await this.#backend.update({ id, plugin, ...change });
  }

  /**
   * Returns what of the resources can be changed. plugin: as in ContainerChange.
   * @throws CriError FAILED_PRECONDITION if they have limits that are fixed after creation.
   */
  changeOf(id: string, plugin: string, resources: LinuxResources): ResourceChange {
    const { fixed, ignored, ...change } = toCri(resources);
    const text = "can only be set when a container is created";
    if (fixed.length > 0) {
      throw new CriError("FAILED_PRECONDITION", `container ${id}: ${fixed.join(", ")} ${text}`);
    }
    if (ignored.length > 0) this.#ignore(id, plugin, `${ignored.join(", ")} ${text}`);
    return change;
  }

  #ignore(container: string, plugin: string, reason: string): void {
    const key = `${plugin}: ${reason}`;
    if (this.#ignored.has(key)) return;
    if (this.#ignored.size === ignoredMax) this.#ignored.clear();
    this.#ignored.add(key);
    const message = "part of an NRI update ignored, also in later updates of this plugin";
    this.#log.warn(message, { plugin, container, reason });
  }

  /** Stops containers without waiting for their end. */
  evict(evictions: readonly ContainerEviction[]): void {
    for (const { container_id, reason } of evictions) {
      const id = container_id ?? "";
      this.#log.info("NRI plugin evicts a container", { container: id, reason: reason ?? "" });
      this.#backend.evict(id, reason ?? "").catch((error: unknown) => {
        this.#log.warn("NRI eviction failed", { container: id, error: messageOf(error) });
      });
    }
  }
}
