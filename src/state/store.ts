// Records in memory and on disk: an index by id and by reserved name, one change at a time for each
// record, written before it is seen.
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { writeFileAtomic } from "../sys/file.ts";

export type StoreOptions<Record> = {
  /** What a record is, for messages: "sandbox". */
  kind: string;
  /** `<folder>/<id>/<kind>.json` */
  folder: string;
  toJson: (record: Record) => object;
  /** @throws what is wrong with it. */
  fromJson: (json: unknown) => Record;
};

export class Store<Record extends { id: string; name: string }> {
  readonly #options: StoreOptions<Record>;
  readonly #records = new Map<string, Record>();
  /** Reserved name → id. */
  readonly #names = new Map<string, string>();
  readonly #locks = new Map<string, Promise<void>>();

  constructor(options: StoreOptions<Record>) {
    this.#options = options;
  }

  /** Reads all records; a damaged one is moved aside and told of, and never stops the start. */
  async load(setAside: string): Promise<string[]> {
    const { folder, kind, fromJson } = this.#options;
    const problems: string[] = [];
    await mkdir(folder, { recursive: true, mode: 0o711 });
    for (const id of await readdir(folder)) {
      try {
        const text = await readFile(join(folder, id, `${kind}.json`), "utf8");
        const record = fromJson(JSON.parse(text));
        if (record.id !== id) throw new Error(`its id is ${record.id}`);
        this.#records.set(id, record);
        this.#names.set(record.name, id);
      } catch (error) {
        await mkdir(setAside, { recursive: true, mode: 0o700 });
        const to = join(setAside, `${kind}-${id}-${Date.now()}`);
        await rename(join(folder, id), to);
        problems.push(`${kind} ${id} cannot be read (${messageOf(error)}): moved to ${to}`);
      }
    }
    return problems;
  }

  /** The folder of one record, for what else belongs to it. */
  folderOf(id: string): string {
    return join(this.#options.folder, id);
  }

  /** Holds a name for an id until `release` or `remove`. @throws CriError ALREADY_EXISTS. */
  reserve(name: string, id: string): void {
    const holder = this.#names.get(name);
    if (holder !== undefined) {
      const { kind } = this.#options;
      throw new CriError(
        "ALREADY_EXISTS",
        `${kind} name ${name} is reserved for ${kind} ${holder}: remove that one or use another attempt`,
      );
    }
    this.#names.set(name, id);
  }

  release(name: string): void {
    this.#names.delete(name);
  }

  list(): Record[] {
    return [...this.#records.values()];
  }

  /** By id or unambiguous prefix. @throws CriError INVALID_ARGUMENT when several begin so. */
  find(idOrPrefix: string): Record | undefined {
    const exact = this.#records.get(idOrPrefix);
    if (exact !== undefined || idOrPrefix === "") return exact;
    const found = this.list().filter(({ id }) => id.startsWith(idOrPrefix));
    if (found.length > 1) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `${this.#options.kind} id ${idOrPrefix} is ambiguous: ${found.length} ids begin so`,
      );
    }
    return found[0];
  }

  /** @throws CriError NOT_FOUND. */
  get(idOrPrefix: string): Record {
    const record = this.find(idOrPrefix);
    if (record !== undefined) return record;
    throw new CriError("NOT_FOUND", `${this.#options.kind} ${idOrPrefix} not found`);
  }

  /** Writes a record that is not to be listed yet. durable: it must survive a power loss. */
  async write(record: Record, options: { durable?: boolean } = {}): Promise<void> {
    const { kind, toJson } = this.#options;
    const folder = this.folderOf(record.id);
    await mkdir(folder, { recursive: true, mode: 0o711 });
    const path = join(folder, `${kind}.json`);
    await writeFileAtomic(path, JSON.stringify(toJson(record)), {
      fsync: options.durable === true,
    });
  }

  /** Writes, then lists. */
  async put(record: Record, options: { durable?: boolean } = {}): Promise<void> {
    await this.write(record, options);
    this.#records.set(record.id, record);
  }

  /** Changes a listed record; one change at a time. A record that is gone meanwhile stays gone. */
  async update(id: string, change: (old: Record) => Record): Promise<Record | undefined> {
    using _ = await this.lock(`write ${id}`);
    const old = this.#records.get(id);
    if (old === undefined) return undefined;
    const changed = change(old);
    if (changed === old) return old;
    await this.write(changed);
    this.#records.set(id, changed);
    return changed;
  }

  /** Takes it off the list, removes its folder and frees its name. */
  async remove(id: string): Promise<void> {
    using _ = await this.lock(`write ${id}`);
    const record = this.#records.get(id);
    this.#records.delete(id);
    await this.discard(id);
    if (record !== undefined) this.release(record.name);
  }

  /** Removes the folder of a record that was never listed. */
  async discard(id: string): Promise<void> {
    try {
      await rm(this.folderOf(id), { recursive: true, force: true });
    } catch (error) {
      if (errnoOf(error) !== "EBUSY") throw error;
      throw new CriError(
        "INTERNAL",
        `${this.#options.kind} ${id}: something is still mounted in its folder`,
        {
          cause: error,
        },
      );
    }
  }

  /** One holder at a time for each key, in the order of asking. */
  async lock(key: string): Promise<Disposable> {
    const before = this.#locks.get(key) ?? Promise.resolve();
    const held = Promise.withResolvers<void>();
    const tail = before.then(() => held.promise);
    this.#locks.set(key, tail);
    await before;
    return {
      [Symbol.dispose]: () => {
        if (this.#locks.get(key) === tail) this.#locks.delete(key);
        held.resolve();
      },
    };
  }
}
