// Keeps the monitor's records in the state folder's tmpfs for the next monitor: how each container was
// started and, for those that have ended, how they ended.
import { mkdirSync, readdirSync, readFileSync, renameSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import { replaceInMemory } from "../sys/file.ts";
import { unpin } from "./init_process.ts";
import { exitText, parseExit, parseRun, runText } from "./record_schemas.ts";
import type { ExitRecord, RunRecord } from "./record_schemas.ts";

type Kind = "containers" | "exits";

export class RecordFolder {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async make(): Promise<void> {
    this.#makeFolders();
    // Files of calls that an earlier monitor left unfinished.
    for (const file of readdirSync(this.#folder, { recursive: true, encoding: "utf8" })) {
      if (!/^runtime-.*\.log$|^\.?exec-|^tty-|\.tmp$/.test(file)) continue;
      await rm(join(this.#folder, file), { force: true });
    }
  }

  #makeFolders(): void {
    for (const kind of ["containers", "exits", "pids"]) {
      mkdirSync(join(this.#folder, kind), { recursive: true, mode: 0o700 });
    }
  }

  /** Recreates the folders: programs that clean up /run may remove them. */
  keepFolders(): void {
    try {
      this.#makeFolders();
    } catch {
      // The next write into them reports the cause, a full disk for example.
    }
  }

  /** The file on which a container's init is pinned (init_process.ts). */
  pinOf(id: string): string {
    return join(this.#folder, "pids", id);
  }

  writeRun(run: RunRecord): void {
    replaceInMemory(this.#file("containers", run.id), runText(run));
  }

  writeExit(exit: ExitRecord): void {
    replaceInMemory(this.#file("exits", exit.id), exitText(exit));
  }

  /** Removes a container's pin, and then its records: without a record nobody would know of the pin. */
  async remove(id: string): Promise<void> {
    unpin(this.pinOf(id));
    await rm(this.#file("containers", id), { force: true });
    await rm(this.#file("exits", id), { force: true });
  }

  /** Reads all records; calls onBad for each file that cannot be read, and leaves it out. */
  read(onBad: (file: string, error: unknown) => void): { runs: RunRecord[]; exits: ExitRecord[] } {
    return {
      runs: this.#all("containers", onBad, parseRun),
      exits: this.#all("exits", onBad, parseExit),
    };
  }

  #all<T>(kind: Kind, onBad: (file: string, error: unknown) => void, parse: (text: string) => T) {
    const records: T[] = [];
    for (const name of readdirSync(join(this.#folder, kind))) {
      if (!name.endsWith(".json")) continue;
      const file = join(this.#folder, kind, name);
      try {
        records.push(parse(readFileSync(file, "utf8")));
      } catch (error) {
        onBad(file, error);
      }
    }
    return records;
  }

  #file(kind: Kind, id: string): string {
    return join(this.#folder, kind, `${id}.json`);
  }
}

/** Renames a record that cannot be read, so that later monitors skip it; best effort. */
export function setAside(file: string): void {
  try {
    renameSync(file, `${file}.damaged`);
  } catch {
    // It cannot be renamed, for example to the name of a folder: each start reports the record again.
  }
}

/** `monitor --check-state`. @throws when this executable cannot read a running monitor's records. */
export function checkState(state: string): void {
  new RecordFolder(join(state, "monitor")).read((file, error) => {
    const message = `this executable cannot read ${file}: ${messageOf(error)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  });
}
