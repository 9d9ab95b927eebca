// Reads and writes the files of one record: `<kind>.json` in its folder under graph, which a durable write syncs to
// survive a power loss; `<kind>-<id>.json` under state, a tmpfs, with the newest change; and `<kind>.settled.json`
// next to the first, to which write-behind copies the change a second later. So no change waits for a disk, and
// kill -9 loses none. After a reboot the settled file is the newest. It is a file of its own because it is not synced:
// a power loss may leave it empty, and must leave `<kind>.json` whole.
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { codeOf, CriError, errnoOf, messageOf, isNodeExhausted } from "../base/errors.ts";
import { isTemporaryFor, replaceInMemory, writeFileAtomic } from "../sys/file.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

export class RecordFiles {
  readonly #folder: string;
  readonly #base: string;
  readonly #settled: string;
  readonly #change: string;
  #begun = false;
  /** Set while a full disk keeps an older change in state than the record in memory. */
  #isChangeStale = false;

  /** folder: the record's own; changes: the folder of all records' changes. */
  constructor(kind: string, id: string, at: { folder: string; changes: string }) {
    this.#folder = at.folder;
    this.#base = join(at.folder, `${kind}.json`);
    this.#settled = join(at.folder, `${kind}.settled.json`);
    this.#change = join(at.changes, `${kind}-${id}.json`);
  }

  /** Reads the files that exist, newest first; an error stands for one that cannot be read. */
  texts(): (string | Error)[] {
    const base = read(this.#base);
    this.#begun = base !== undefined;
    return [read(this.#change), read(this.#settled), base].filter((text) => text !== undefined);
  }

  /**
   * Writes the record; durable: synced to disk. The first write makes the record's folder.
   * @throws CriError RESOURCE_EXHAUSTED on a full disk, otherwise with the code of codeOf().
   */
  async write(text: string, durable: boolean): Promise<void> {
    const inMemory = this.#begun && !durable;
    try {
      if (inMemory) return this.#replaceChange(text);
      await mkdir(this.#folder, { recursive: true, mode: 0o700 });
      await writeFileAtomic(this.#base, text, { fsync: durable });
      this.#begun = true;
      rmSync(this.#settled, { force: true });
      rmSync(this.#change, { force: true });
    } catch (cause) {
      const path = inMemory ? this.#change : this.#base;
      throw new CriError(codeOf(cause), `cannot write ${path}: ${messageOf(cause)}`, { cause });
    }
  }

  #replaceChange(text: string): void {
    this.#isChangeStale = true;
    try {
      replaceInMemory(this.#change, text);
    } catch (error) {
      if (errnoOf(error) !== "ENOENT") throw error;
      // A cleaner of /run has removed the folder under the running daemon.
      mkdirSync(dirname(this.#change), { recursive: true, mode: 0o700 });
      replaceInMemory(this.#change, text);
    }
    this.#isChangeStale = false;
  }

  /**
   * Copies the newest change into the record's folder, so that it outlives the boot. The caller passes the
   * text: the file of the change may have been removed since, with all of state.
   */
  async flush(text: string): Promise<void> {
    await writeFileAtomic(this.#settled, text);
    // Otherwise the next start would take the older change in state for the newest.
    if (this.#isChangeStale) rmSync(this.#change, { force: true });
  }

  /** True if the folder never held a whole record: its first write was cut off. */
  isUnbegun(): boolean {
    try {
      const names = readdirSync(this.#folder);
      return names.every((name) => isTemporaryFor(this.#base, join(this.#folder, name)));
    } catch {
      return false; // a folder that cannot be listed is damage
    }
  }

  /** Removes the change of a record whose folder is removed. */
  removeChange(): void {
    removeTreeNow(this.#change);
  }

  /** Removes files that cannot be read, since they would block the next write. */
  removeUnreadable(): void {
    for (const path of [this.#change, this.#settled, this.#base]) {
      if (read(path) instanceof Error) removeTreeNow(path);
    }
  }
}

function read(path: string): string | Error | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    const errno = errnoOf(error) ?? "";
    if (["ENOENT", "ENOTDIR"].includes(errno)) return undefined;
    const cause = new Error(`${path}: ${messageOf(error)}`, { cause: error });
    if (isNodeExhausted(error)) throw cause;
    return cause;
  }
}
