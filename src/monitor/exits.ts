// Keeps the exits of containers that are not removed yet. An exit whose record a full disk rejects is written later:
// the next monitor would not know it.
import { CriError, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import type { Log } from "../base/log.ts";
import { unpin } from "./init_process.ts";
import type { ExitRecord } from "./record_schemas.ts";
import type { RecordFolder } from "./records.ts";

export class Exits {
  readonly #records: RecordFolder;
  readonly #log: Log;
  /** By id. */
  readonly #exits = new Map<string, ExitRecord>();
  /** Ids of exits without a record. */
  readonly #unwritten = new Set<string>();

  constructor(records: RecordFolder, log: Log) {
    this.#records = records;
    this.#log = log;
  }

  get all(): ExitRecord[] {
    return [...this.#exits.values()];
  }

  get hasUnwritten(): boolean {
    return this.#unwritten.size > 0;
  }

  get(id: string): ExitRecord | undefined {
    return this.#exits.get(id);
  }

  /** Takes an exit that an earlier monitor has recorded. */
  resume(exit: ExitRecord): void {
    this.#exits.set(exit.id, exit);
  }

  /** Records an exit, as far as a full disk allows. */
  async add(exit: ExitRecord): Promise<void> {
    try {
      await step("exit-record", () => this.#write(exit));
    } catch (error) {
      // Announced all the same: the daemon records it too, and until then the pin keeps it (init_process.ts).
      this.#unwritten.add(exit.id);
      const fields = { container: exit.id, error: messageOf(error) };
      this.#log.error("recording the exit of a container failed, retrying", fields);
    }
    this.#exits.set(exit.id, exit);
  }

  #write(exit: ExitRecord): void {
    this.#records.writeExit(exit);
    this.#unwritten.delete(exit.id);
    unpin(this.#records.pinOf(exit.id));
  }

  /** Writes the records that failed: called at intervals. Returns the last problem. */
  retry(): unknown {
    let problem: unknown;
    for (const id of this.#unwritten) {
      try {
        this.#write(this.#exits.get(id)!);
      } catch (error) {
        problem = error;
      }
    }
    return problem;
  }

  /** Writes all records again after their folder was removed. */
  rewrite(): void {
    for (const id of this.#exits.keys()) this.#unwritten.add(id);
    this.retry();
  }

  /** @throws CriError RESOURCE_EXHAUSTED while an exit cannot be recorded. */
  requireWritten(): void {
    const cause = this.retry();
    if (!this.hasUnwritten) return;
    const message = `the exits of ${this.#unwritten.size} containers cannot be recorded: ${messageOf(cause)}`;
    throw new CriError("RESOURCE_EXHAUSTED", message, { cause });
  }

  delete(id: string): void {
    this.#exits.delete(id);
    this.#unwritten.delete(id);
  }
}
