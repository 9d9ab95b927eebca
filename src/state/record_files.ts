// One record on disk, in up to three places: `<kind>.json` in its folder under graph, for what must
// survive a power loss; `<kind>-<id>.json` under state, a tmpfs, with every change since then; and
// `<kind>.settled.json` beside the first, where the changes come a second later. A change waits for no
// disk that way, and none is lost with kill -9. After a reboot the settled one is the newest that there
// is; it is a file of its own, since a power loss may leave nothing of what nobody has waited for.
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { codeOf, CriError, errnoOf, messageOf } from "../base/errors.ts";
import { isTemporaryFor, replaceInMemory, writeFileAtomic } from "../sys/file.ts";

export class RecordFiles {
  readonly #folder: string;
  readonly #base: string;
  readonly #settled: string;
  readonly #change: string;
  #begun = false;

  /** folder: the record's own; changes: the one where all records' changes lie. */
  constructor(kind: string, id: string, at: { folder: string; changes: string }) {
    this.#folder = at.folder;
    this.#base = join(at.folder, `${kind}.json`);
    this.#settled = join(at.folder, `${kind}.settled.json`);
    this.#change = join(at.changes, `${kind}-${id}.json`);
  }

  /** What there is, the newest first; an error for what is there and cannot be read. */
  texts(): (string | Error)[] {
    const base = read(this.#base);
    this.#begun = base !== undefined;
    return [read(this.#change), read(this.#settled), base].filter((text) => text !== undefined);
  }

  /**
   * durable: it must survive a power loss. The first one begins the record's folder.
   * @throws CriError RESOURCE_EXHAUSTED on a full disk, or as codeOf() has it.
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
    try {
      replaceInMemory(this.#change, text);
    } catch (error) {
      if (errnoOf(error) !== "ENOENT") throw error;
      // What tidies up /run has taken the folder away under the daemon.
      mkdirSync(dirname(this.#change), { recursive: true, mode: 0o700 });
      replaceInMemory(this.#change, text);
    }
  }

  /**
   * Brings what has changed into the record's folder too, so that it outlives the boot. Its text is the
   * caller's: the change's file may have gone since, with all of state.
   */
  async settle(text: string): Promise<void> {
    await writeFileAtomic(this.#settled, text);
  }

  /** Whether nothing of a record was ever there: its folder was made for a first one that was cut off. */
  isUnbegun(): boolean {
    try {
      const names = readdirSync(this.#folder);
      return names.every((name) => isTemporaryFor(this.#base, join(this.#folder, name)));
    } catch {
      return false; // no folder: damage
    }
  }

  /** The record's folder is gone. */
  removeChange(): void {
    rmSync(this.#change, { recursive: true, force: true });
  }

  /** Takes away what no text can be had of, and would be in the way of the next one. */
  removeUnreadable(): void {
    for (const path of [this.#change, this.#settled, this.#base]) {
      if (read(path) instanceof Error) rmSync(path, { recursive: true, force: true });
    }
  }
}

/** No fault of the file that is read: it would be found with every other one. */
const ownTroubles = ["EMFILE", "ENFILE", "ENOMEM"];

function read(path: string): string | Error | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    const errno = errnoOf(error) ?? "";
    if (["ENOENT", "ENOTDIR"].includes(errno)) return undefined;
    const cause = new Error(`${path}: ${messageOf(error)}`, { cause: error });
    if (ownTroubles.includes(errno)) throw cause;
    return cause;
  }
}
