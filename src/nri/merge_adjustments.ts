// Merges plugins' adjustments of a container that is being created. Pure. Each field has one owner
// (field_owners.ts); each plugin sees the container as changed by the plugins before it.
//
// A key that begins with "-" removes an entry of the container or of an earlier plugin, whose claim ends. The
// removing plugin may add the entry again.
import { nri } from "../proto/nri.js";
import type {
  Container as NriContainer,
  ContainerAdjustment,
  ContainerEviction,
  CreateContainerResponse,
  Hooks,
  LinuxContainerAdjustment,
  LinuxRdt,
} from "../proto/nri_types.ts";
import { marked, FieldOwners, unmarked, type FieldId } from "./field_owners.ts";
import {
  byKey,
  entriesOf,
  isSet,
  mergeResources,
  UpdateMerge,
  type Claim,
  type Entries,
  type Plain,
} from "./merge_updates.ts";

const { Field } = nri.pkg.api.v1alpha1;

export const hookKinds = [
  "prestart",
  "create_runtime",
  "create_container",
  "start_container",
  "poststart",
  "poststop",
] as const satisfies (keyof Hooks)[];

/** Single-value fields of LinuxContainerAdjustment; all but the last are in LinuxContainer, too. */
const linuxFields: [field: FieldId, name: keyof LinuxContainerAdjustment][] = [
  [Field.CgroupsPath, "cgroups_path"],
  [Field.OomScoreAdj, "oom_score_adj"],
  [Field.IoPriority, "io_priority"],
  [Field.SeccompPolicy, "seccomp_policy"],
  [Field.LinuxSched, "scheduler"],
  [Field.MemoryPolicy, "memory_policy"],
];

const rdtFields = [
  [Field.RdtClosID, "clos_id"],
  [Field.RdtSchemata, "schemata"],
  [Field.RdtEnableMonitoring, "enable_monitoring"],
] as const satisfies [FieldId, keyof LinuxRdt][];

/** Entries by key: those that the next plugin sees, those that plugins added, and those that they removed. */
class Keyed<Item> {
  readonly field: FieldId;
  readonly seen: Map<string, Item>;
  readonly added = new Map<string, Item>();
  readonly #removed = new Set<string>();

  constructor(field: FieldId, seen: Entries<Item> = []) {
    this.field = field;
    this.seen = new Map(seen);
  }

  apply(entries: Entries<Item>, container: string, plugin: string, owners: FieldOwners): void {
    const requested = entries.map(([key, item]) => ({ ...unmarked(key), item }));
    for (const { key } of requested.filter(({ removed }) => removed)) {
      owners.clear(container, plugin, this.field, key);
      this.seen.delete(key);
      this.added.delete(key);
      this.#removed.add(key);
    }
    for (const { key, item } of requested.filter(({ removed }) => !removed)) {
      owners.claim(container, plugin, this.field, key);
      for (const map of [this.seen, this.added]) {
        map.delete(key); // the newest last
        map.set(key, item);
      }
    }
  }

  /** Returns marked removals, then added entries. */
  adjusted(removal: (key: string) => Item): Entries<Item> {
    const removed = [...this.#removed].filter((key) => !this.added.has(key));
    return [
      ...removed.map((key): [string, Item] => [marked(key), removal(marked(key))]),
      ...this.added,
    ];
  }
}

/** Merges the CreateContainer responses for one container, in plugin order. */
export class AdjustmentMerge {
  readonly owners = new FieldOwners();
  /** Updates of other containers. */
  readonly updates: UpdateMerge;
  readonly evictions: ContainerEviction[] = [];
  /** Id of the container. */
  readonly id: string;
  readonly #container: NriContainer;
  readonly #annotations;
  readonly #mounts;
  readonly #env;
  readonly #devices;
  readonly #namespaces;
  readonly #sysctls;
  readonly #netDevices;
  readonly #rlimits;
  readonly #cdiDevices = new Keyed<object>(Field.CdiDevices);
  readonly #hooks: Hooks;
  readonly #addedHooks: Hooks = {};
  readonly #linux: Plain;
  readonly #addedLinux: Plain = {};
  #args: string[] | undefined;
  #rdt: LinuxRdt | undefined;

  /** container: without any plugin's changes. */
  constructor(container: NriContainer) {
    this.#container = container;
    this.id = container.id ?? "";
    this.updates = new UpdateMerge(this.owners, { creating: this.id });
    const linux = container.linux ?? {};
    this.#linux = { ...linux, resources: linux.resources ?? {} };
    this.#annotations = new Keyed(Field.Annotations, entriesOf(container.annotations));
    this.#mounts = new Keyed(Field.Mounts, byKey(container.mounts, "destination"));
    this.#env = new Keyed(Field.Env, (container.env ?? []).map(splitEnv));
    this.#devices = new Keyed(Field.Devices, byKey(linux.devices, "path"));
    this.#namespaces = new Keyed(Field.Namespace, byKey(linux.namespaces, "type"));
    this.#sysctls = new Keyed(Field.Sysctl, entriesOf(linux.sysctl));
    this.#netDevices = new Keyed(Field.LinuxNetDevices, entriesOf(linux.net_devices));
    this.#rlimits = new Keyed(Field.Rlimits, byKey(container.rlimits, "type"));
    this.#hooks = { ...container.hooks };
  }

  /** @throws CriError FAILED_PRECONDITION for a conflict. */
  apply(plugin: string, response: CreateContainerResponse): void {
    const { adjust } = response;
    if (adjust) this.#adjust(plugin, adjust);
    this.updates.apply(plugin, response.update ?? []);
    this.evictions.push(...(response.evict ?? []));
  }

  #adjust(plugin: string, adjust: ContainerAdjustment): void {
    const keyed = <Item>(slot: Keyed<Item>, entries: Entries<Item>) =>
      slot.apply(entries, this.id, plugin, this.owners);
    const linux = adjust.linux ?? {};
    keyed(this.#annotations, entriesOf(adjust.annotations));
    keyed(this.#mounts, byKey(adjust.mounts, "destination"));
    keyed(
      this.#env,
      (adjust.env ?? []).map(({ key, value }) => [key ?? "", value ?? ""]),
    );
    this.#adjustArgs(plugin, adjust.args ?? []);
    this.#addHooks(plugin, adjust.hooks ?? {});
    keyed(this.#devices, byKey(linux.devices, "path"));
    keyed(this.#namespaces, byKey(linux.namespaces, "type"));
    keyed(this.#sysctls, entriesOf(linux.sysctl));
    keyed(this.#netDevices, entriesOf(linux.net_devices));
    keyed(this.#rlimits, byKey(adjust.rlimits, "type"));
    keyed(this.#cdiDevices, byKey(adjust.CDI_devices, "name"));
    this.#adjustLinux(plugin, linux);
  }

  #adjustArgs(plugin: string, args: string[]): void {
    if (args.length === 0) return;
    const isForced = args[0] === "";
    if (isForced) this.owners.clear(this.id, plugin, Field.Args);
    this.owners.claim(this.id, plugin, Field.Args);
    this.#args = isForced ? args.slice(1) : args;
  }

  #addHooks(plugin: string, hooks: Hooks): void {
    const kinds = hookKinds.filter((kind) => (hooks[kind] ?? []).length > 0);
    for (const kind of kinds) {
      this.#hooks[kind] = [...(this.#hooks[kind] ?? []), ...hooks[kind]!];
      this.#addedHooks[kind] = [...(this.#addedHooks[kind] ?? []), ...hooks[kind]!];
    }
    if (kinds.length > 0) this.owners.share(this.id, plugin, Field.OciHooks);
  }

  #adjustLinux(plugin: string, linux: LinuxContainerAdjustment): void {
    const claim: Claim = (field, key) => this.owners.claim(this.id, plugin, field, key);
    if (linux.resources) {
      mergeResources(this.#addedLinux, linux.resources, claim);
      mergeResources(this.#linux, linux.resources, () => {});
    }
    for (const [field, name] of linuxFields) {
      const value = linux[name];
      if (!isSet(value)) continue;
      claim(field);
      this.#addedLinux[name] = value;
      if (name !== "memory_policy") this.#linux[name] = value;
    }
    if (linux.rdt) this.#adjustRdt(plugin, linux.rdt, claim);
  }

  #adjustRdt(plugin: string, rdt: LinuxRdt, claim: Claim): void {
    if (rdt.remove) {
      for (const [field] of rdtFields) this.owners.clear(this.id, plugin, field);
      this.#rdt = { remove: true };
    }
    for (const [field, name] of rdtFields) {
      if (!isSet(rdt[name])) continue;
      claim(field);
      this.#rdt = { ...this.#rdt, [name]: rdt[name] };
    }
  }

  /** Returns the container as the next plugin sees it. */
  container(): NriContainer {
    return {
      ...this.#container,
      annotations: Object.fromEntries(this.#annotations.seen),
      mounts: [...this.#mounts.seen.values()],
      env: [...this.#env.seen].map(([key, value]) => `${key}=${value}`),
      args: this.#args ?? this.#container.args,
      hooks: this.#hooks,
      rlimits: [...this.#rlimits.seen.values()],
      linux: {
        ...this.#linux,
        devices: [...this.#devices.seen.values()],
        namespaces: [...this.#namespaces.seen.values()],
        sysctl: Object.fromEntries(this.#sysctls.seen),
        net_devices: Object.fromEntries(this.#netDevices.seen),
        ...(this.#rdt ? { rdt: this.#rdt } : {}),
      },
    };
  }

  /** Returns the merged adjustment of all plugins. */
  adjustment(): ContainerAdjustment {
    return {
      annotations: Object.fromEntries(this.#annotations.adjusted(() => "")),
      mounts: this.#mounts.adjusted((destination) => ({ destination })).map(([, item]) => item),
      env: this.#env.adjusted(() => "").map(([key, value]) => ({ key, value })),
      args: this.#args ?? [],
      hooks: { ...this.#addedHooks },
      rlimits: [...this.#rlimits.added.values()],
      CDI_devices: [...this.#cdiDevices.added.values()],
      linux: {
        ...this.#addedLinux,
        devices: this.#devices.adjusted((path) => ({ path })).map(([, item]) => item),
        namespaces: this.#namespaces.adjusted((type) => ({ type })).map(([, item]) => item),
        sysctl: Object.fromEntries(this.#sysctls.adjusted(() => "")),
        net_devices: Object.fromEntries(this.#netDevices.adjusted(() => ({}))),
        ...(this.#rdt ? { rdt: this.#rdt } : {}),
      },
    };
  }
}

function splitEnv(entry: string): [string, string] {
  const at = entry.indexOf("=");
  return at < 0 ? [entry, ""] : [entry.slice(0, at), entry.slice(at + 1)];
}
