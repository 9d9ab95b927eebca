// What a monitor leaves on the state folder's tmpfs for the next one: of each container how it was
// started, and of each that has ended how.
import { mkdirSync, readdirSync, readFileSync, renameSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { CriError, messageOf } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { replaceInMemory } from "../sys/file.ts";
import { unpin } from "./init_process.ts";
import type { ExitRecord } from "./protocol.ts";

const Digits = v.pipe(v.string(), v.regex(/^\d+$/));
/** Raised when an older monitor could not go on with what a newer one wrote. */
const Version = v.optional(v.literal(1), 1);

const RunSchema = v.object({
  version: Version,
  id: v.string(),
  runtime: v.object({
    path: v.string(),
    args: v.array(v.string()),
    root: v.string(),
    systemdCgroup: v.boolean(),
  }),
  bundle: v.string(),
  stdio: v.string(),
  logPath: v.string(),
  stdin: v.boolean(),
  terminal: v.boolean(),
  owner: v.optional(v.object({ uid: v.number(), gid: v.number() })),
  cgroup: v.record(v.string(), v.string()),
  timeoutMs: v.number(),
  /** Init's; 0 before the runtime has made it. */
  pid: v.number(),
  /** Clock ticks since boot: with the pid, the name of one process. */
  pidStartTime: v.string(),
  startedAtNs: Digits,
  /** The runtime's start has been called and has succeeded. */
  started: v.optional(v.boolean(), true),
});
export type RunRecord = v.InferOutput<typeof RunSchema>;

const ExitSchema = v.object({
  version: Version,
  id: v.string(),
  pid: v.number(),
  exitCode: v.number(),
  known: v.boolean(),
  startedAtNs: Digits,
  finishedAtNs: Digits,
  oomKilled: v.boolean(),
  oomLimit: v.optional(v.picklist(["container", "pod", "node"])),
  lostLogBytes: v.number(),
});

type Kind = "containers" | "exits";
export type Records = { runs: RunRecord[]; exits: ExitRecord[] };

export class RecordFolder {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async make(): Promise<void> {
    this.#makeFolders();
    await this.#removeTemporary();
  }

  #makeFolders(): void {
    for (const kind of ["containers", "exits", "pids"]) {
      mkdirSync(join(this.#folder, kind), { recursive: true, mode: 0o700 });
    }
  }

  /** What tidies up /run may take the folders away under a monitor: the next call finds them again. */
  keepFolders(): void {
    try {
      this.#makeFolders();
    } catch {
      // The disk is full, say: whoever writes there is told.
    }
  }

  /** Files of calls that an earlier monitor did not see the end of. */
  async #removeTemporary(): Promise<void> {
    for (const file of readdirSync(this.#folder, { recursive: true, encoding: "utf8" })) {
      if (!/^runtime-.*\.log$|^\.?exec-|^tty-|\.tmp$/.test(file)) continue;
      await rm(join(this.#folder, file), { force: true });
    }
  }

  /** Where a container's init is pinned (init_process.ts). */
  pinOf(id: string): string {
    return join(this.#folder, "pids", id);
  }

  writeRun(run: RunRecord): void {
    replaceInMemory(this.#file("containers", run.id), jsonText(run));
  }

  writeExit(exit: ExitRecord): void {
    replaceInMemory(this.#file("exits", exit.id), jsonText({ version: 1, ...exit }));
  }

  /** With its pin. */
  async remove(id: string): Promise<void> {
    await rm(this.#file("containers", id), { force: true });
    await rm(this.#file("exits", id), { force: true });
    unpin(this.pinOf(id));
  }

  /** Everything; onBad is told of a file that cannot be read, which is then left out. */
  read(onBad: (file: string, error: unknown) => void): Records {
    return {
      runs: this.#all("containers", onBad, (json) => v.parse(RunSchema, json)),
      exits: this.#all("exits", onBad, (json) => v.parse(ExitSchema, json)),
    };
  }

  #all<T>(kind: Kind, onBad: (file: string, error: unknown) => void, parse: (json: unknown) => T) {
    const records: T[] = [];
    for (const name of readdirSync(join(this.#folder, kind))) {
      if (!name.endsWith(".json")) continue;
      const file = join(this.#folder, kind, name);
      try {
        records.push(parse(jsonValue(readFileSync(file, "utf8"))));
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

/** Keeps a record that cannot be read from being met again, where something lets it. */
export function setAside(file: string): void {
  try {
    renameSync(file, `${file}.damaged`);
  } catch {
    // A folder of that name, say: it is told of at each start instead.
  }
}

/** `monitor --check-state`: whether this executable can go on with a running monitor's records. */
export function checkState(state: string): void {
  new RecordFolder(join(state, "monitor")).read((file, error) => {
    const message = `this executable cannot read ${file}: ${messageOf(error)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  });
}
