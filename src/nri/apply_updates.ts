// What plugins want done to containers that exist.
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type {
  ContainerEviction,
  ContainerUpdate,
  UpdateContainersRequest,
  UpdateContainersResponse,
} from "../proto/nri_types.ts";
import { checkUpdate } from "./check_answers.ts";
import { toCri, type ContainerSnapshot, type PodSnapshot, type ResourceChange } from "./convert.ts";

/** A change of a container that exists. */
export type Change = ResourceChange & { id: string };

/** What the host is told about pods and containers, and does to them when a plugin asks for it. */
export type NriBackend = {
  /** Those that plugins are told of when they come: no container that has ended. */
  state: () => Promise<{ pods: PodSnapshot[]; containers: ContainerSnapshot[] }>;
  /** Whether it exists and has not ended. */
  isLive: (id: string) => boolean;
  /** @throws CriError when it cannot be done; then nothing is. */
  update: (change: Change) => Promise<void>;
  evict: (id: string, reason: string) => Promise<void>;
};

export class UpdateApplier {
  readonly #world: NriBackend;
  readonly #log: Log;

  constructor(world: NriBackend, log: Log) {
    this.#world = world;
    this.#log = log;
  }

  /**
   * What a plugin asks for by itself; each that can be is done.
   * @throws CriError INVALID_ARGUMENT for what cannot be at all; then nothing is.
   */
  async asked(plugin: string, request: UpdateContainersRequest): Promise<UpdateContainersResponse> {
    const failed: ContainerUpdate[] = [];
    for (const update of request.update ?? []) checkUpdate(update);
    for (const update of request.update ?? []) {
      try {
        await this.#apply(update);
      } catch (error) {
        failed.push(update);
        const fields = { plugin, container: update.container_id ?? "" };
        this.#log.warn("a plugin's update failed", { ...fields, error: messageOf(error) });
      }
    }
    this.evict(request.evict ?? []);
    return { failed };
  }

  /**
   * Without those of containers that are not there: no reason to fail the request that they came with.
   * creating: one that is not there yet, and may not be updated.
   */
  live(plugin: string, updates: readonly ContainerUpdate[], creating?: string): ContainerUpdate[] {
    return updates.filter(({ container_id }) => {
      const id = container_id ?? "";
      if (id === creating || this.#world.isLive(id)) return true;
      const why = "there is none such that has not ended";
      this.#log.warn("a plugin's update failed", { plugin, container: id, error: why });
      return false;
    });
  }

  /** @throws CriError of the first that fails and whose failure matters. */
  async applyAll(who: string, updates: readonly ContainerUpdate[]): Promise<void> {
    for (const update of updates) {
      try {
        await this.#apply(update);
      } catch (error) {
        const id = update.container_id ?? "";
        if (!update.ignore_failure && this.#world.isLive(id)) {
          throw new CriError(codeOf(error), `${who}: update of ${id}: ${messageOf(error)}`, {
            cause: error,
          });
        }
        this.#log.info("an update failed", { container: id, error: messageOf(error) });
      }
    }
  }

  async #apply(update: ContainerUpdate): Promise<void> {
    const id = update.container_id ?? "";
    const { others, ...change } = toCri(update.linux?.resources ?? {});
    refuseOthers(id, others);
    await this.#world.update({ id, ...change });
  }

  /** Stops containers; who asked for it does not wait. */
  evict(evictions: readonly ContainerEviction[]): void {
    for (const { container_id, reason } of evictions) {
      const id = container_id ?? "";
      this.#log.info("a plugin evicts a container", {
        container: id,
        reason: reason ?? "",
      });
      this.#world.evict(id, reason ?? "").catch((error: unknown) => {
        this.#log.warn("an eviction failed", { container: id, error: messageOf(error) });
      });
    }
  }
}

/** @throws CriError FAILED_PRECONDITION for what cannot be changed after the creation. */
export function refuseOthers(id: string, others: string[]): void {
  if (others.length === 0) return;
  throw new CriError(
    "FAILED_PRECONDITION",
    `container ${id}: ${others.join(", ")} can only be set when a container is created`,
  );
}
