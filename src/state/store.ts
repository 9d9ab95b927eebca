// Records in memory and on disk: an index by id and by reserved name, one change at a time for each
// record, written before it is seen.
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { KeyedLock } from "../base/keyed_lock.ts";
import { nowMs } from "../base/clock.ts";
import { Ordered } from "./order.ts";
import { RecordFiles } from "./record_files.ts";
import { WriteBehind } from "./write_behind.ts";

/** A 64-bit number in a record: JSON has none. */
export const Digits = v.pipe(v.string(), v.regex(/^\d{1,20}$/));

export type StoreOptions<Record> = {
  /** What a record is, for messages: "sandbox". */
  kind: string;
  /** `<folder>/<id>/` holds one record (record_files.ts) and what else belongs to it. */
  folder: string;
  /** Where changes lie at first. */
  changes: string;
  /** Of the records that are written. */
  version: number;
  toJson: (record: Record) => object;
  /** @throws what is wrong with it. */
  fromJson: (json: unknown) => Record;
  /** A change that happened could not be written, or one that was would not outlive a reboot. */
  onUnwritten?: (problem: string) => void;
  /** Told of each change of the list when it is made; undefined: not listed. */
  onCommit?: (before: Record | undefined, after: Record | undefined) => void;
};

/** Folders of records that are on their way out; what a crash left of them goes at the next start. */
const removing = ".removing-";

export class Store<Record extends { id: string; name: string; createdAtNs: string }> {
  readonly #options: StoreOptions<Record>;
  readonly #records = new Ordered<Record>();
  /** Reserved name → id. */
  readonly #names = new Map<string, string>();
  readonly #locks = new KeyedLock();
  /** By id. */
  readonly #files = new Map<string, RecordFiles>();
  /** Folders that load() has found on their way out. */
  readonly #remains: string[] = [];
  readonly #writeBehind = new WriteBehind(
    (id) => this.#settle(id),
    (failures) => this.#tellUnsettled(failures),
  );

  constructor(options: StoreOptions<Record>) {
    this.#options = options;
  }

  /**
   * Reads all records; one that is damaged is moved aside and told of, and never stops the start. What
   * was cut off before its first record was whole, and so had done nothing yet, is removed.
   * @throws CriError FAILED_PRECONDITION for a record of a newer version, before anything is touched;
   * what the system says where none can be read at all, for then all would be taken for gone.
   */
  async load(setAside: string): Promise<string[]> {
    const { folder, kind } = this.#options;
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await mkdir(this.#options.changes, { recursive: true, mode: 0o700 });
    const names = await readdir(folder);
    const ids = names.filter((name) => !name.startsWith("."));
    const found = ids.map((id) => {
      const files = this.#filesOf(id);
      return { id, files, texts: files.texts() };
    });
    for (const { id, texts } of found) this.#refuseNewer(id, texts);
    const problems: string[] = [];
    await this.#removeStrays(new Set(ids), problems);
    for (const { id, files, texts } of found) {
      if (texts.length === 0 && files.isUnbegun()) {
        await attempt(() => rm(this.folderOf(id), { recursive: true, force: true }), problems);
        continue;
      }
      try {
        this.#add(id, this.#newest(id, texts, problems));
        this.#files.set(id, files);
      } catch (error) {
        const done = await this.#moveAside(id, files, setAside);
        problems.push(`${kind} ${id} cannot be read (${messageOf(error)}): ${done}`);
        continue;
      }
      await attempt(() => files.removeUnreadable(), problems);
    }
    this.#remains.push(...names.filter((name) => name.startsWith(removing)));
    return problems;
  }

  /** What a removal that was cut off had not come to; it may take long, as much as a container has written. */
  async removeRemains(): Promise<string[]> {
    const problems: string[] = [];
    for (const name of this.#remains.splice(0)) {
      const path = join(this.#options.folder, name);
      await attempt(() => rm(path, { recursive: true, force: true }), problems);
    }
    return problems;
  }

  /** Takes a damaged record out of the way; what became of it. A full disk may not even take that. */
  async #moveAside(id: string, files: RecordFiles, setAside: string): Promise<string> {
    const from = this.folderOf(id);
    const to = join(setAside, `${this.#options.kind}-${id}-${Math.trunc(nowMs())}`);
    try {
      await mkdir(setAside, { recursive: true, mode: 0o700 });
      await rename(from, to);
      files.removeChange();
      return `moved to ${to}`;
    } catch (error) {
      return `it is passed over, and stays in ${from} (${messageOf(error)})`;
    }
  }

  /**
   * Before load(): brings back records of which nothing is left but a change, for their folders were lost,
   * as `change` makes them. Returns what cannot be brought back, in words; it never stops the start.
   */
  async restoreStrays(change: (stray: Record) => Record): Promise<string[]> {
    const { kind, folder, changes } = this.#options;
    const problems: string[] = [];
    for (const name of existsSync(changes) ? await readdir(changes) : []) {
      const id = name.slice(kind.length + 1, -".json".length);
      if (name !== `${kind}-${id}.json`) continue;
      // Not where its removal was cut off after all that belongs to it was gone.
      if ([id, `${removing}${id}`].some((left) => existsSync(join(folder, left)))) continue;
      try {
        const stray = this.#parse(await readFile(join(changes, name), "utf8"));
        if (stray.id === id) await this.write(change(stray));
      } catch (error) {
        problems.push(`what is left of ${kind} ${id} is of no use: ${messageOf(error)}`);
      }
    }
    return problems;
  }

  /** What kill -9 left among the changes: files half written, and those of records that are gone. */
  async #removeStrays(ids: ReadonlySet<string>, problems: string[]): Promise<void> {
    const { kind, changes } = this.#options;
    for (const name of await readdir(changes)) {
      if (!name.startsWith(`${kind}-`)) continue;
      const id = name.slice(kind.length + 1, -".json".length);
      if (ids.has(id)) continue;
      await attempt(() => rm(join(changes, name), { recursive: true, force: true }), problems);
    }
  }

  #add(id: string, record: Record): void {
    if (record.id !== id) throw new Error(`its id is ${record.id}`);
    const other = this.#names.get(record.name);
    if (other !== undefined) throw new Error(`its name is the one of ${other}`);
    this.#records.set(record);
    this.#names.set(record.name, id);
  }

  /** The newest that can be read. @throws what is wrong with the newest when none can. */
  #newest(id: string, texts: (string | Error)[], problems: string[]): Record {
    let failure: unknown = new Error("it is not there");
    for (const [index, text] of texts.entries()) {
      try {
        const record = this.#parse(text);
        if (index > 0) {
          const { kind } = this.#options;
          problems.push(`${kind} ${id}: an older record is used (${messageOf(failure)})`);
        }
        return record;
      } catch (error) {
        if (index === 0) failure = error;
      }
    }
    throw failure;
  }

  #parse(text: string | Error): Record {
    if (text instanceof Error) throw text;
    return this.#options.fromJson(jsonValue(text));
  }

  #refuseNewer(id: string, texts: (string | Error)[]): void {
    const { kind, version } = this.#options;
    for (const text of texts) {
      if (text instanceof Error) continue;
      const found = Number(/^\s*\{\s*"version"\s*:\s*(\d+)/.exec(text)?.[1] ?? 0);
      if (found <= version) continue;
      throw new CriError(
        "FAILED_PRECONDITION",
        `${kind} ${id} has version ${found} and this isulad-ts knows ${version}: a newer isulad-ts made it; run that one`,
      );
    }
  }

  #filesOf(id: string): RecordFiles {
    const { kind, changes } = this.#options;
    return new RecordFiles(kind, id, { folder: this.folderOf(id), changes });
  }

  /** What has changed reaches the disk, now instead of in a second: the daemon ends. */
  async settle(): Promise<void> {
    await this.#writeBehind.settleAll();
  }

  /** Not locked: nobody may wait for a disk, and what changes meanwhile is settled after it. */
  async #settle(id: string): Promise<void> {
    const record = this.#records.get(id);
    if (record === undefined) return;
    try {
      await this.#files.get(id)?.settle(jsonText(this.#options.toJson(record)));
    } catch (error) {
      if (this.#records.has(id)) throw error; // otherwise it was removed meanwhile
    }
  }

  #tellUnsettled(failures: Map<string, unknown>): void {
    const { kind, onUnwritten } = this.#options;
    const [[id, error] = []] = failures;
    onUnwritten?.(
      `after a reboot ${failures.size} ${kind} records would be older ones, ${id} among them: ${messageOf(error)}`,
    );
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

  /** Frees a name where this id holds it still: its next holder may have come meanwhile. */
  release(name: string, id: string): void {
    if (this.#names.get(name) === id) this.#names.delete(name);
  }

  /** Whether an id is listed, or is being made. */
  knows(id: string): boolean {
    return this.#records.has(id) || this.#names.values().some((holder) => holder === id);
  }

  /** The same for the start of an id. */
  knowsPrefix(prefix: string): boolean {
    const begins = (id: string) => id.startsWith(prefix);
    return this.#records.ids().some(begins) || this.#names.values().some(begins);
  }

  /** Newest first. */
  list(): Record[] {
    return this.#records.list();
  }

  /** By its whole id. */
  listed(id: string): Record | undefined {
    return this.#records.get(id);
  }

  /** By id or unambiguous prefix. @throws CriError INVALID_ARGUMENT when several begin so. */
  find(idOrPrefix: string): Record | undefined {
    const exact = this.#records.get(idOrPrefix);
    if (exact !== undefined || idOrPrefix === "") return exact;
    const found = this.list().filter(({ id }) => id.startsWith(idOrPrefix));
    if (found.length > 1) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `${this.#options.kind} id ${idOrPrefix} is ambiguous: ${found.length} ids begin so; give more of it`,
      );
    }
    return found[0];
  }

  /** @throws CriError NOT_FOUND. */
  get(idOrPrefix: string): Record {
    const record = this.find(idOrPrefix);
    if (record !== undefined) return record;
    const { kind } = this.#options;
    throw new CriError("NOT_FOUND", `${kind} ${idOrPrefix || '""'} not found on this node`);
  }

  /** Writes a record that is not to be listed yet. durable: it must survive a power loss. */
  async write(record: Record, options: { durable?: boolean } = {}): Promise<void> {
    const { toJson } = this.#options;
    const { id } = record;
    const files = this.#files.get(id) ?? this.#filesOf(id);
    this.#files.set(id, files);
    await files.write(jsonText(toJson(record)), options.durable === true);
  }

  /** Writes, then lists. happened: as update() has it. */
  async put(
    record: Record,
    options: { durable?: boolean; happened?: boolean } = {},
  ): Promise<void> {
    await this.#writeOrReport(record, options);
    if (options.durable !== true) this.#writeBehind.add(record.id);
    const before = this.#records.get(record.id);
    this.#records.set(record);
    this.#options.onCommit?.(before, record);
  }

  /**
   * Changes a listed record; one change at a time. A record that is gone meanwhile stays gone.
   * happened: it is so already (an exit), and is listed even when a full disk does not take it;
   * otherwise nothing could be stopped and removed to make room. A new daemon finds out again.
   */
  async update(
    id: string,
    change: (old: Record) => Record,
    options: { happened?: boolean } = {},
  ): Promise<Record | undefined> {
    using _ = await this.lock(`write ${id}`);
    const old = this.#records.get(id);
    if (old === undefined) return undefined;
    const changed = change(old);
    if (changed === old) return old;
    await this.#writeOrReport(changed, options);
    this.#records.set(changed);
    this.#writeBehind.add(id);
    this.#options.onCommit?.(old, changed);
    return changed;
  }

  /** happened: a record that the disk does not take is an error in the log, and no other. */
  async #writeOrReport(
    record: Record,
    options: { durable?: boolean; happened?: boolean },
  ): Promise<void> {
    try {
      await this.write(record, options);
    } catch (error) {
      if (options.happened !== true) throw error;
      this.#options.onUnwritten?.(messageOf(error));
    }
  }

  /** Removes a record's folder, listed or not, takes it off the list and frees its name. */
  async remove(id: string): Promise<void> {
    using _ = await this.lock(`write ${id}`);
    const gone = join(this.#options.folder, `${removing}${id}`);
    try {
      // In one step, so that a crash leaves the whole record or none.
      await rename(this.folderOf(id), gone);
    } catch (error) {
      if (errnoOf(error) !== "ENOENT") throw error;
    }
    const record = this.#records.get(id);
    this.#records.delete(id);
    (this.#files.get(id) ?? this.#filesOf(id)).removeChange();
    this.#files.delete(id);
    if (record !== undefined) {
      this.release(record.name, id);
      this.#options.onCommit?.(record, undefined);
    }
    await rm(gone, { recursive: true, force: true });
  }

  /** One holder at a time for each key, in the order of asking. */
  lock(key: string): Promise<Disposable> {
    return this.#locks.acquire(key);
  }
}

/** What hinders the start no further than that it is told of. */
async function attempt(action: () => Promise<void> | void, problems: string[]): Promise<void> {
  try {
    await action();
  } catch (error) {
    problems.push(`what is left of a record cannot be removed: ${messageOf(error)}`);
  }
}
