// Store: keeps records in memory and on disk, indexed by id and by reserved name. Serializes the changes of
// a record, and writes each before it is visible.
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename } from "node:fs/promises";
import { join } from "node:path";
import { activity } from "../base/activity.ts";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { KeyedLock } from "../base/keyed_lock.ts";
import { refuseNewer } from "../base/record_version.ts";
import { nowMs } from "../base/clock.ts";
import { Ordered } from "./order.ts";
import { RecordFiles } from "./record_files.ts";
import { WriteBehind } from "./write_behind.ts";
import { removeTree } from "../sys/remove_tree.ts";

export type StoreOptions<Record> = {
  /** Names a record in messages: "sandbox". */
  kind: string;
  /** `<folder>/<id>/` holds one record (record_files.ts) and its other files. */
  folder: string;
  /** The folder, under state, with the newest change of each record (record_files.ts). */
  changes: string;
  /** The version of records that this build writes. */
  version: number;
  toJson: (record: Record) => object;
  /** @throws with the reason why the JSON is no record. */
  fromJson: (json: unknown) => Record;
  /** True for a record that is only left to be rolled back; another one may have its name by now. */
  isLeftover?: (record: Record) => boolean;
  /** Called if a change that happened cannot be written, or would not outlive a reboot. */
  onUnwritten?: (problem: string) => void;
  /** Called at each change of the list; before, after: undefined where the record is not listed. */
  onCommit?: (before: Record | undefined, after: Record | undefined) => void;
};

/** durable: synced, to survive a power loss; happened: see update(). */
type WriteOptions = { durable?: boolean; happened?: boolean };

/** Marks folders that are being removed; the next start finishes a removal that a crash cut off. */
const removing = ".removing-";

export class Store<Record extends { id: string; name: string; createdAtNs: string }> {
  readonly #options: StoreOptions<Record>;
  readonly #records = new Ordered<Record>();
  /** Reserved name → id. */
  readonly #names = new Map<string, string>();
  readonly #locks: KeyedLock;
  /** By id. */
  readonly #files = new Map<string, RecordFiles>();
  /** Folders of interrupted removals that load() found. */
  readonly #interrupted: string[] = [];
  readonly #writeBehind = new WriteBehind(
    (id) => this.#flush(id),
    (failures) => this.#reportUnflushed(failures),
  );

  constructor(options: StoreOptions<Record>) {
    this.#options = options;
    this.#locks = new KeyedLock(options.kind);
  }

  /**
   * Reads all records; a damaged one is moved aside, and never stops the start. A folder whose first record
   * was cut off is removed: nothing had been done for it. Returns the problems, for the log.
   * @throws CriError FAILED_PRECONDITION for a record of a newer version, before anything is changed; an error if the
   * folder cannot be listed, or if the node is out of descriptors or memory: then no record must pass for damaged.
   */
  async load(setAside: string): Promise<string[]> {
    const { folder, kind, version } = this.#options;
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await mkdir(this.#options.changes, { recursive: true, mode: 0o700 });
    const names = await readdir(folder);
    const ids = names.filter((name) => !name.startsWith("."));
    const found = ids.map((id) => {
      const files = this.#filesOf(id);
      return { id, files, texts: files.texts() };
    });
    for (const { id, texts } of found) {
      for (const text of texts) {
        if (typeof text === "string") refuseNewer(text, { what: `${kind} ${id}`, version });
      }
    }
    const problems: string[] = [];
    await this.#removeStrays(new Set(ids), problems);
    const leftovers: Record[] = [];
    for (const { id, files, texts } of found) {
      if (texts.length === 0 && files.isUnbegun()) {
        await attempt(() => removeTree(this.folderOf(id)), problems);
        continue;
      }
      try {
        const record = this.#newest(id, texts, problems);
        if (record.id !== id) throw new Error(`its id is ${record.id}`);
        if (this.#options.isLeftover?.(record)) leftovers.push(record);
        else this.#add(record);
        this.#files.set(id, files);
      } catch (error) {
        const done = await this.#moveAside(id, files, setAside);
        problems.push(`${kind} ${id} cannot be read (${messageOf(error)}): ${done}`);
        continue;
      }
      await attempt(() => files.removeUnreadable(), problems);
    }
    // Last, so that none takes the name from a record in use.
    for (const record of leftovers) {
      this.#records.set(record);
      if (!this.#names.has(record.name)) this.#names.set(record.name, record.id);
    }
    this.#interrupted.push(...names.filter((name) => name.startsWith(removing)));
    return problems;
  }

  /** Finishes interrupted removals; slow if a container has written many files. Returns the problems. */
  async finishRemovals(): Promise<string[]> {
    const problems: string[] = [];
    for (const name of this.#interrupted.splice(0)) {
      const path = join(this.#options.folder, name);
      await attempt(() => removeTree(path), problems);
    }
    return problems;
  }

  /** Moves a damaged record aside, as far as a full disk allows. Returns the outcome, for the log. */
  async #moveAside(id: string, files: RecordFiles, setAside: string): Promise<string> {
    const from = this.folderOf(id);
    const to = join(setAside, `${this.#options.kind}-${id}-${Math.trunc(nowMs())}`);
    try {
      await mkdir(setAside, { recursive: true, mode: 0o700 });
      await rename(from, to);
      files.removeChange();
      return `moved to ${to}`;
    } catch (error) {
      return `ignored, it stays in ${from} (${messageOf(error)})`;
    }
  }

  /**
   * Restores records whose folders were lost and of which only a change is left, as `change` transforms them; to be
   * called before load(). Returns the problems, which never stop the start.
   */
  async restoreStrays(change: (stray: Record) => Record): Promise<string[]> {
    const { kind, folder, changes } = this.#options;
    const problems: string[] = [];
    for (const name of existsSync(changes) ? await readdir(changes) : []) {
      const id = name.slice(kind.length + 1, -".json".length);
      if (name !== `${kind}-${id}.json`) continue;
      // Not after an interrupted removal, whose resources had been released.
      if ([id, `${removing}${id}`].some((left) => existsSync(join(folder, left)))) continue;
      try {
        const stray = this.#parse(await readFile(join(changes, name), "utf8"));
        if (stray.id === id) await this.write(change(stray));
      } catch (error) {
        problems.push(`${kind} ${id} cannot be restored from ${name}: ${messageOf(error)}`);
      }
    }
    return problems;
  }

  /** Removes files that kill -9 left among the changes: half-written ones, and those of removed records. */
  async #removeStrays(ids: ReadonlySet<string>, problems: string[]): Promise<void> {
    const { kind, changes } = this.#options;
    for (const name of await readdir(changes)) {
      if (!name.startsWith(`${kind}-`)) continue;
      const id = name.slice(kind.length + 1, -".json".length);
      if (ids.has(id)) continue;
      await attempt(() => removeTree(join(changes, name)), problems);
    }
  }

  #add(record: Record): void {
    const other = this.#names.get(record.name);
    if (other !== undefined) throw new Error(`its name belongs to ${other}`);
    this.#records.set(record);
    this.#names.set(record.name, record.id);
  }

  /** Returns the newest readable record. @throws the problem of the newest if there is none. */
  #newest(id: string, texts: (string | Error)[], problems: string[]): Record {
    let failure: unknown = new Error("it does not exist");
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
    return this.#options.fromJson(trustedJsonValue(text));
  }

  #filesOf(id: string): RecordFiles {
    const { kind, changes } = this.#options;
    return new RecordFiles(kind, id, { folder: this.folderOf(id), changes });
  }

  /** Changed records that would not outlive a reboot yet. */
  get unflushed(): number {
    return this.#writeBehind.length;
  }

  /** Flushes changed records to disk at once, for the daemon's end. */
  flush(): Promise<void> {
    return this.#writeBehind.flushAll();
  }

  /** Takes no lock, so that nobody waits for a disk; a record that changes meanwhile is due again. */
  async #flush(id: string): Promise<void> {
    const record = this.#records.get(id);
    if (record === undefined) return;
    try {
      await this.#files.get(id)?.flush(jsonText(this.#options.toJson(record)));
    } catch (error) {
      if (this.#records.has(id)) throw error; // otherwise the record was removed meanwhile
    }
  }

  #reportUnflushed(failures: Map<string, unknown>): void {
    const { kind, onUnwritten } = this.#options;
    const [[id, error] = []] = failures;
    onUnwritten?.(
      `${failures.size} changed ${kind} records cannot be copied to disk and would be lost by a reboot, ${id} among them; retrying in 60 s: ${messageOf(error)}`,
    );
  }

  /** Returns the folder of a record, which also holds the other files of its object. */
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

  /** Frees a name if this id still holds it. */
  release(name: string, id: string): void {
    if (this.#names.get(name) === id) this.#names.delete(name);
  }

  /** True for an id that is listed or being created. */
  knows(id: string): boolean {
    return this.#records.has(id) || this.#names.values().some((holder) => holder === id);
  }

  /** As knows(), by the prefix of an id. */
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

  /** Finds by id or unambiguous prefix. @throws CriError INVALID_ARGUMENT for an ambiguous one. */
  find(idOrPrefix: string): Record | undefined {
    const exact = this.#records.get(idOrPrefix);
    if (exact !== undefined || idOrPrefix === "") return exact;
    const found = this.list().filter(({ id }) => id.startsWith(idOrPrefix));
    if (found.length > 1) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `${this.#options.kind} id ${idOrPrefix} is ambiguous: ${found.length} ids have this prefix; use a longer one`,
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

  /** Writes a record without listing it. */
  async write(record: Record, { durable = false }: WriteOptions = {}): Promise<void> {
    const files = this.#files.get(record.id) ?? this.#filesOf(record.id);
    this.#files.set(record.id, files);
    const text = jsonText(this.#options.toJson(record));
    await activity("store", { kind: this.#options.kind }, () => files.write(text, durable));
  }

  /** Writes a record, then lists it. */
  async put(record: Record, options: WriteOptions = {}): Promise<void> {
    await this.#writeOrReport(record, options);
    if (options.durable !== true) this.#writeBehind.add(record.id);
    const before = this.#records.get(record.id);
    this.#records.set(record);
    this.#options.onCommit?.(before, record);
  }

  /**
   * Changes a listed record, one change at a time; a removed record stays removed.
   * happened: the change is a fact already (an exit), and is listed even if a full disk rejects it: otherwise
   * nothing could be stopped and removed to make room. A restarted daemon detects it again.
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

  /** happened: a failed write is only reported. */
  async #writeOrReport(record: Record, options: WriteOptions): Promise<void> {
    try {
      await this.write(record, options);
    } catch (error) {
      if (options.happened !== true) throw error;
      this.#options.onUnwritten?.(messageOf(error));
    }
  }

  /** Removes a record and its folder, listed or not, and frees its name. */
  async remove(id: string): Promise<void> {
    using _ = await this.lock(`write ${id}`);
    const doomed = join(this.#options.folder, `${removing}${id}`);
    try {
      // Atomic: a crash leaves the whole record or none.
      await rename(this.folderOf(id), doomed);
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
    await removeTree(doomed);
  }

  isLocked(key: string): boolean {
    return this.#locks.isHeld(key);
  }

  /**
   * Locks a key; callers are served in order.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before the key is free.
   */
  lock(key: string, signal?: AbortSignal): Promise<Disposable> {
    return this.#locks.acquire(key, signal);
  }
}

/** Collects a failure as a problem, instead of failing the start. */
async function attempt(action: () => Promise<void> | void, problems: string[]): Promise<void> {
  try {
    await action();
  } catch (error) {
    problems.push(`leftover files of a record cannot be removed: ${messageOf(error)}`);
  }
}
