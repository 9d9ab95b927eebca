// A monitor's place in the state folder: the lock, which only one can have, and the socket on which it
// is found. Both are looked at now and then, for files are removed.
import { closeSync, fstatSync, statSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import { dirname, join } from "node:path";
import { keepOnExec } from "../sys/descriptor.ts";
import { openLocked } from "../sys/path.ts";

export class Place {
  readonly #lockPath: string;
  readonly #socketPath: string;
  readonly #onConnection: (socket: Socket) => void;
  #lockFd: number;
  #server: Server | undefined;
  #looking: Promise<"kept" | "retaken" | "lost"> | undefined;
  /** Which file the socket is; "" before it is bound. */
  #bound = "";

  private constructor(
    { folder, onConnection }: { folder: string; onConnection: (socket: Socket) => void },
    lockFd: number,
  ) {
    this.#lockPath = join(folder, "lock");
    this.#socketPath = join(folder, "socket");
    this.#onConnection = onConnection;
    this.#lockFd = lockFd;
    keepOnExec(lockFd, false);
  }

  /** undefined: another monitor has it. lockFd: the lock, where an earlier build had it. */
  static async take(options: {
    folder: string;
    lockFd?: number;
    onConnection: (socket: Socket) => void;
  }): Promise<Place | undefined> {
    const lockFd = options.lockFd ?? (await lock(join(options.folder, "lock")));
    return lockFd === undefined ? undefined : new Place(options, lockFd);
  }

  get lockFd(): number {
    return this.#lockFd;
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
    const { dev, ino } = fstatSync(this.#lockFd, { bigint: true });
    if (identity(this.#lockPath) === `${dev}:${ino}`) {
      if (identity(this.#socketPath) !== this.#bound) await this.listen();
      return "kept";
    }
    const lockFd = await lock(this.#lockPath);
    if (lockFd === undefined) return "lost";
    closeSync(this.#lockFd);
    this.#lockFd = lockFd;
    await this.listen();
    return "retaken";
  }

  async leave(): Promise<void> {
    await rm(this.#socketPath, { force: true });
  }
}

/** Two monitors would take each other's output; undefined when another one has the lock. */
async function lock(path: string): Promise<number | undefined> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  return openLocked(path);
}

/** Which file lies at path; "": none. */
function identity(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false, bigint: true });
  return stat === undefined ? "" : `${stat.dev}:${stat.ino}`;
}
