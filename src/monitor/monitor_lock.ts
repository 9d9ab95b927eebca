// Holds the monitor's lock on the state folder, which only one monitor can have, and its socket. keep() is
// called at intervals and restores what was removed.
import { chmodSync, fstatSync, statSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import { dirname, join } from "node:path";
import { keepOnExec, type Descriptor } from "../sys/descriptor.ts";
import { openLocked } from "../sys/path.ts";
import { removeTree } from "../sys/remove_tree.ts";

export class MonitorLock {
  readonly #lockPath: string;
  readonly #socketPath: string;
  readonly #onConnection: (socket: Socket) => void;
  #lock: Descriptor;
  #server: Server | undefined;
  #keeping: Promise<"kept" | "retaken" | "lost"> | undefined;
  /** The socket's file; "" before it is bound. */
  #bound = "";

  private constructor(
    { folder, onConnection }: { folder: string; onConnection: (socket: Socket) => void },
    lock: Descriptor,
  ) {
    this.#lockPath = join(folder, "lock");
    this.#socketPath = join(folder, "socket");
    this.#onConnection = onConnection;
    this.#lock = lock;
    keepOnExec(lock, false);
  }

  /** Takes the lock; undefined: another monitor has it. lock: inherited from the build before an upgrade. */
  static async take(options: {
    folder: string;
    lock?: Descriptor | undefined;
    onConnection: (socket: Socket) => void;
  }): Promise<MonitorLock | undefined> {
    const lock = options.lock ?? (await takeLock(join(options.folder, "lock")));
    return lock === undefined ? undefined : new MonitorLock(options, lock);
  }

  get descriptor(): Descriptor {
    return this.#lock;
  }

  /** Accepts connections on a new socket; open connections stay. */
  async listen(): Promise<void> {
    this.#server?.close(); // first: it removes the path
    await removeTree(this.#socketPath);
    const server = createServer(this.#onConnection);
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(this.#socketPath, resolve);
    });
    this.#server = server;
    chmodSync(this.#socketPath, 0o600);
    this.#bound = identity(this.#socketPath);
  }

  /**
   * Restores a removed socket, or the whole folder ("retaken": it is empty now). "lost": another monitor has
   * taken the lock meanwhile.
   */
  keep(): Promise<"kept" | "retaken" | "lost"> {
    this.#keeping ??= this.#keep().finally(() => (this.#keeping = undefined));
    return this.#keeping;
  }

  async #keep(): Promise<"kept" | "retaken" | "lost"> {
    const { dev, ino } = fstatSync(this.#lock.fd, { bigint: true });
    if (identity(this.#lockPath) === `${dev}:${ino}`) {
      if (identity(this.#socketPath) !== this.#bound) await this.listen();
      return "kept";
    }
    const lock = await takeLock(this.#lockPath);
    if (lock === undefined) return "lost";
    this.#lock.close();
    this.#lock = lock;
    await this.listen();
    return "retaken";
  }

  async leave(): Promise<void> {
    await rm(this.#socketPath, { force: true });
  }
}

/** undefined when another monitor has the lock: two would take each other's output. */
async function takeLock(path: string): Promise<Descriptor | undefined> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  return openLocked(path);
}

/** Identifies the file at path; "": none. */
function identity(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false, bigint: true });
  return stat === undefined ? "" : `${stat.dev}:${stat.ino}`;
}
