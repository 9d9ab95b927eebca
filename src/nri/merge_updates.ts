// Merges plugins' resource changes of existing and (for merge_adjustments.ts) new containers. Pure.
import { CriError } from "../base/errors.ts";
import { nri } from "../proto/nri.js";
import type {
  ContainerEviction,
  ContainerUpdate,
  LinuxResources,
  UpdateContainerResponse,
} from "../proto/nri_types.ts";
import { FieldOwners, type FieldId } from "./field_owners.ts";

const { Field } = nri.pkg.api.v1alpha1;

/** Single-value fields, with their paths in LinuxResources. */
const resourceFields: [field: FieldId, ...path: string[]][] = [
  [Field.MemLimit, "memory", "limit"],
  [Field.MemReservation, "memory", "reservation"],
  [Field.MemSwapLimit, "memory", "swap"],
  [Field.MemKernelLimit, "memory", "kernel"],
  [Field.MemTCPLimit, "memory", "kernel_tcp"],
  [Field.MemSwappiness, "memory", "swappiness"],
  [Field.MemDisableOomKiller, "memory", "disable_oom_killer"],
  [Field.MemUseHierarchy, "memory", "use_hierarchy"],
  [Field.CPUShares, "cpu", "shares"],
  [Field.CPUQuota, "cpu", "quota"],
  [Field.CPUPeriod, "cpu", "period"],
  [Field.CPURealtimeRuntime, "cpu", "realtime_runtime"],
  [Field.CPURealtimePeriod, "cpu", "realtime_period"],
  [Field.CPUSetCPUs, "cpu", "cpus"],
  [Field.CPUSetMems, "cpu", "mems"],
  [Field.PidsLimit, "pids"],
  [Field.BlockioClass, "blockio_class"],
  [Field.RdtClass, "rdt_class"],
];

export type Plain = { [name: string]: unknown };
export type Claim = (field: FieldId, key?: string) => void;
export type Entries<Item> = [key: string, item: Item][];

type Requested = { id: string; resources: LinuxResources };

/** Merges updates of existing containers, in plugin order. */
export class UpdateMerge {
  readonly #owners: FieldOwners;
  readonly #creating: string | undefined;
  readonly #requested: Requested | undefined;
  readonly #updates = new Map<string, ContainerUpdate>();
  /** Container → the plugins that update it. */
  readonly #plugins = new Map<string, Set<string>>();

  /**
   * creating: the container being created, which must not be updated. requested: the container and resources
   * of CRI's UpdateContainerResources.
   */
  constructor(owners: FieldOwners, given: { creating?: string; requested?: Requested } = {}) {
    this.#owners = owners;
    this.#creating = given.creating;
    this.#requested = given.requested;
  }

  /** @throws CriError FAILED_PRECONDITION for a conflict, unless the update has ignore_failure. */
  apply(plugin: string, updates: readonly ContainerUpdate[]): void {
    for (const update of updates) {
      try {
        this.#update(plugin, update);
      } catch (error) {
        if (!update.ignore_failure) throw error;
      }
    }
  }

  #update(plugin: string, update: ContainerUpdate): void {
    const id = update.container_id ?? "";
    if (id === this.#creating) {
      throw new CriError(
        "FAILED_PRECONDITION",
        `NRI plugin ${plugin} updates container ${id} while it is being created: it must adjust it instead`,
      );
    }
    const before = this.#updates.get(id);
    const linux: Plain = { resources: before?.linux?.resources ?? this.#asRequested(id) };
    const claim: Claim = (field, key) => this.#owners.claim(id, plugin, field, key);
    const resources = update.linux?.resources ?? {};
    mergeResources(linux, resources, claim);
    this.#dropRequestedSwap(linux, id, resources);
    const ignored = (before?.ignore_failure ?? true) && update.ignore_failure === true;
    this.#updates.set(id, { container_id: id, linux, ignore_failure: ignored });
    this.#plugins.set(id, (this.#plugins.get(id) ?? new Set()).add(plugin));
  }

  /**
   * The requested swap limit includes the requested memory limit: a plugin that sets another memory limit, and no
   * swap limit, allows no swap, as in CRI. The swap limit of another plugin stays.
   */
  #dropRequestedSwap(linux: Plain, id: string, { memory: given }: LinuxResources): void {
    if (!given?.limit || given.swap) return;
    const { memory } = linux["resources"] as LinuxResources;
    if (memory?.swap === this.#asRequested(id).memory?.swap) delete memory?.swap;
  }

  #asRequested(id: string): LinuxResources {
    return this.#requested?.id === id ? this.#requested.resources : {};
  }

  /** Returns the requested container's resources as merged so far. */
  requested(): LinuxResources {
    const { id, resources } = this.#requested ?? { id: "", resources: {} };
    return this.#updates.get(id)?.linux?.resources ?? resources;
  }

  /** Returns the updates of all other containers. */
  others(): ContainerUpdate[] {
    const requested = this.#requested?.id;
    return [...this.#updates.values()].filter(({ container_id: id }) => id !== requested);
  }

  /** Returns the plugins that update the container, in their order: "10-a, 20-b". */
  pluginsOf(id: string): string {
    return [...(this.#plugins.get(id) ?? [])].join(", ");
  }
}

/** Merges plugins' responses to CRI's UpdateContainerResources. */
export class ResourceUpdateMerge {
  readonly updates: UpdateMerge;
  readonly evictions: ContainerEviction[] = [];

  constructor(id: string, resources: LinuxResources) {
    this.updates = new UpdateMerge(new FieldOwners(), { requested: { id, resources } });
  }

  apply(plugin: string, response: UpdateContainerResponse): void {
    this.updates.apply(plugin, response.update ?? []);
    this.evictions.push(...(response.evict ?? []));
  }
}

/** Replaces target.resources by a merged copy: other holders of the old object do not see the change. */
export function mergeResources(target: Plain, given: LinuxResources, claim: Claim): void {
  const old = (target["resources"] ?? {}) as LinuxResources;
  const merged: Plain = { ...old, memory: { ...old.memory }, cpu: { ...old.cpu } };
  for (const [field, ...path] of resourceFields) {
    const value = path.reduce<unknown>((at, name) => (at as Plain | undefined)?.[name], given);
    if (!isSet(value)) continue;
    claim(field);
    const last = path.at(-1)!;
    const holder = path.length === 1 ? merged : (merged[path[0]!] as Plain);
    holder[last] = value;
  }
  const pages = new Map(byKey(old.hugepage_limits, "page_size"));
  for (const [size, limit] of byKey(given.hugepage_limits, "page_size")) {
    claim(Field.HugepageLimits, size);
    pages.set(size, limit);
  }
  const unified = { ...old.unified };
  for (const [key, value] of Object.entries(given.unified ?? {})) {
    claim(Field.CgroupsUnified, key);
    unified[key] = value;
  }
  merged["hugepage_limits"] = [...pages.values()];
  merged["unified"] = unified;
  merged["devices"] = [...(old.devices ?? []), ...(given.devices ?? [])];
  target["resources"] = merged;
}

/** Returns whether a message or text was sent; protobufjs decodes an absent one to null or "". */
export function isSet(value: unknown): boolean {
  return value !== null && value !== undefined && value !== "";
}

export function entriesOf<Item>(map: { [key: string]: Item } | null | undefined): Entries<Item> {
  return Object.entries(map ?? {});
}

export function byKey<Item>(
  items: readonly Item[] | null | undefined,
  name: keyof Item,
): Entries<Item> {
  return (items ?? []).map((item) => [String(item[name] ?? ""), item]);
}
