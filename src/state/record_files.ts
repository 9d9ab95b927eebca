// One record on disk: `<kind>.json`, which is there from the beginning and is replaced only by what
// must survive a power loss, and beside it `<kind>.N.json`, the last change since then. A change gets
// a name of its own because ext4 makes a rename over an existing file wait for the disk; kill -9
// loses neither, and after a power loss, which may empty the change, the first one counts.
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import { writeFileAtomic } from "../sys/file.ts";

export class RecordFiles {
  readonly #folder: string;
  readonly #kind: string;
  /** Of the newest change, 0 where there is none. */
  #change = 0;
  #begun: boolean;

  constructor(folder: string, kind: string) {
    this.#folder = folder;
    this.#kind = kind;
    const changes = this.#changes();
    this.#change = changes[0] ?? 0;
    this.#begun = this.#read(0) !== undefined;
  }

  /** What can be read, the newest first. */
  texts(): string[] {
    return [...this.#changes(), 0]
      .map((change) => this.#read(change))
      .filter((text) => text !== undefined);
  }

  /** durable: it must survive a power loss. */
  async write(text: string, durable: boolean): Promise<void> {
    const first = durable || !this.#begun;
    if (!this.#begun) mkdirSync(this.#folder, { recursive: true, mode: 0o711 });
    const before = this.#change;
    const name = this.#name(first ? 0 : before + 1);
    await writeFileAtomic(name, text, { fsync: durable });
    this.#begun = true;
    this.#change = first ? 0 : before + 1;
    if (before > 0) rmSync(this.#name(before), { force: true });
  }

  #name(change: number): string {
    const middle = change === 0 ? "" : `.${change}`;
    return join(this.#folder, `${this.#kind}${middle}.json`);
  }

  #read(change: number): string | undefined {
    try {
      return readFileSync(this.#name(change), "utf8");
    } catch (error) {
      if (["ENOENT", "ENOTDIR"].includes(errnoOf(error) ?? "")) return undefined;
      throw error;
    }
  }

  /** Numbers of the changes that are there, the newest first. */
  #changes(): number[] {
    const pattern = new RegExp(`^${this.#kind}\\.(\\d{1,15})\\.json$`);
    return entries(this.#folder)
      .map((name) => Number(pattern.exec(name)?.[1] ?? 0))
      .filter((change) => change > 0)
      .sort((a, b) => b - a);
  }
}

function entries(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes(errnoOf(error) ?? "")) return [];
    throw error;
  }
}
