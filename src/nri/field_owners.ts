// Records the plugin that owns each field of a container. A second plugin that sets the field is a conflict,
// because neither could rely on its value.
import { CriError } from "../base/errors.ts";
import { nri } from "../proto/nri.js";
import type { OwningPlugins } from "../proto/nri_types.ts";

const { Field } = nri.pkg.api.v1alpha1;
export type FieldId = nri.pkg.api.v1alpha1.Field;

/** Marks a key to remove, or the name of a plugin that removed one. */
export function marked(key: string): string {
  return `-${key}`;
}

export function unmarked(key: string): { key: string; removed: boolean } {
  const removed = key.startsWith("-");
  return { key: removed ? key.slice(1) : key, removed };
}

type Claims = { simple: Map<FieldId, string>; compound: Map<FieldId, Map<string, string>> };

export class FieldOwners {
  readonly #containers = new Map<string, Claims>();

  /** @throws CriError FAILED_PRECONDITION naming both plugins, the field and its key. */
  claim(container: string, plugin: string, field: FieldId, key?: string): void {
    const owner = this.#get(container, field, key);
    const other = owner === undefined ? undefined : unmarked(owner);
    // The plugin that removed an entry may set it again; for others it stays removed.
    if (other !== undefined && !(other.removed && other.key === plugin)) {
      const what = key === undefined ? Field[field] : `${Field[field]} ${key}`;
      throw new CriError(
        "FAILED_PRECONDITION",
        `NRI plugins ${other.key} and ${plugin} both set ${what} of container ${container}: change one plugin's configuration`,
      );
    }
    this.#set(container, field, key, plugin);
  }

  /** Ends the owner's claim to a field, if there is one. */
  clear(container: string, plugin: string, field: FieldId, key?: string): void {
    if (this.#get(container, field, key) === undefined) return;
    this.#set(container, field, key, marked(plugin));
  }

  /** Adds an owner to a field that several plugins may set (hooks). */
  share(container: string, plugin: string, field: FieldId): void {
    const owners = this.#get(container, field, undefined);
    this.#set(container, field, undefined, owners === undefined ? plugin : `${owners},${plugin}`);
  }

  /** Returns the owners for validators. */
  message(): OwningPlugins {
    const owners: NonNullable<OwningPlugins["owners"]> = {};
    for (const [container, { simple, compound }] of this.#containers) {
      const keyed = compound
        .entries()
        .map(([field, keys]) => [field, { owners: Object.fromEntries(keys) }] as const);
      owners[container] = {
        simple: Object.fromEntries(simple),
        compound: Object.fromEntries(keyed),
      };
    }
    return { owners };
  }

  #get(container: string, field: FieldId, key: string | undefined): string | undefined {
    const of = this.#containers.get(container);
    return key === undefined ? of?.simple.get(field) : of?.compound.get(field)?.get(key);
  }

  #set(container: string, field: FieldId, key: string | undefined, plugin: string): void {
    const of = this.#containers.get(container) ?? { simple: new Map(), compound: new Map() };
    this.#containers.set(container, of);
    if (key === undefined) {
      of.simple.set(field, plugin);
      return;
    }
    const keys = of.compound.get(field) ?? new Map<string, string>();
    of.compound.set(field, keys.set(key, plugin));
  }
}
