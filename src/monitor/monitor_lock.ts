// A monitor's place in the state folder: the lock, which only one can have, and the socket on which it
// is found. Both are looked at now and then, for files are removed.
import { chmodSync, fstatSync, statSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import { dirname, join } from "node:path";
import { keepOnExec, type Descriptor } from "../sys/descriptor.ts";
import { openLocked } from "../sys/path.ts";

export class MonitorLock {
  readonly #lockPath: string;
  readonly #socketPath: string;
  readonly #onConnection: (socket: Socket) => void;
  #lock: Descriptor;
  #server: Server | undefined;
  #looking: Promise<"kept" | "retaken" | "lost"> | undefined;
  /** Which file the socket is; "" before it is bound. */
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

  /** undefined: another monitor has it. lock: the lock, where an earlier build had it. */
  static async take(options: {
    folder: string;
    lock?: Descriptor | undefined;
    onConnection: (socket: Socket) => void;
  }): Promise<MonitorLock | undefined> {
    const lock = options.lock ?? (await takeLock(join(options.folder, "lock")));
    return lock === undefined ? undefined : new MonitorLock(options, lock);
  }

  get lock(): Descriptor {
    return this.#lock;
  }

  /** Connections are taken; those that there are stay. */
  async listen(): Promise<void> {
    this.#server?.close(); // first: it removes the path
    await rm(this.#socketPath, { recursive: true, force: true });
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
   * Takes back what was removed: the socket, or the whole folder ("retaken": it is empty). "lost": another
   * monitor has come meanwhile.
   */
  keep(): Promise<"kept" | "retaken" | "lost"> {
    // A look that takes long must not meet the next one.
    this.#looking ??= this.#look().finally(() => (this.#looking = undefined));
    return this.#looking;
  }

  async #look(): Promise<"kept" | "retaken" | "lost"> {
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

/** Two monitors would take each other's output; undefined when another one has the lock. */
async function takeLock(path: string): Promise<Descriptor | undefined> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  return openLocked(path);
}

/** Which file lies at path; "": none. */
function identity(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false, bigint: true });
  return stat === undefined ? "" : `${stat.dev}:${stat.ino}`;
}
