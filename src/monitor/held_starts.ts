// Holds containers between the runtime's create and start, while the daemon asks NRI plugins. The creation is undone
// when the daemon removes the container, disconnects, or takes too long.
import { CriError } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import type { Creation } from "./creation.ts";
import type { PendingStarts } from "./pending_starts.ts";
import type { Started, StartRequest } from "./protocol.ts";

type Held = {
  creation: Promise<Creation>;
  outcome: PromiseWithResolvers<Started>;
  /** Of the init, once it is created. */
  pid?: number;
  timer?: NodeJS.Timeout;
};

export class HeldStarts {
  readonly #starts: PendingStarts;
  readonly #log: Log;
  readonly #held = new Map<string, Held>();

  /** starts: has each held container until its program runs, or until its creation is undone. */
  constructor(starts: PendingStarts, log: Log) {
    this.#starts = starts;
    this.#log = log;
  }

  get pids(): number[] {
    return [...this.#held.values()].flatMap(({ pid }) => (pid === undefined ? [] : [pid]));
  }

  /**
   * Creates and holds a container, for as long as its start may take. gone: aborts when its daemon has disconnected.
   * @throws as the creation does; CriError CANCELLED when the creation was undone meanwhile.
   */
  async create(
    { id, timeoutMs }: StartRequest,
    gone: AbortSignal,
    create: () => Promise<Creation>,
  ): Promise<Creation> {
    const held: Held = { creation: create(), outcome: Promise.withResolvers() };
    this.#held.set(id, held);
    // The callers of start() and join() report its failure.
    this.#starts.run(id, held.outcome.promise).catch(() => {});
    this.#undoWhen(gone, id, held);
    try {
      const creation = await held.creation;
      if (!this.#held.has(id)) await held.outcome.promise;
      held.pid = creation.record.pid;
      const late = () => this.#undoNow(id, `its start was not requested within ${timeoutMs} ms`);
      held.timer = setTimeout(late, timeoutMs);
      return creation;
    } catch (error) {
      this.#held.delete(id);
      held.outcome.reject(error);
      throw error;
    }
  }

  #undoWhen(gone: AbortSignal, id: string, { outcome }: Held): void {
    const undo = () => this.#undoNow(id, "the daemon that requested it has disconnected");
    gone.addEventListener("abort", undo);
    const forget = () => gone.removeEventListener("abort", undo);
    outcome.promise.then(forget, forget);
  }

  /** Starts a held container. start: undoes the creation itself when it fails. */
  async start(id: string, start: (creation: Creation) => Promise<Started>): Promise<Started> {
    const held = this.#take(id);
    if (held === undefined) {
      const message = `container ${id} does not wait for its start: its creation was undone, because the start was not requested in time or the monitor has ended`;
      throw new CriError("FAILED_PRECONDITION", message);
    }
    try {
      const started = await start(await held.creation);
      held.outcome.resolve(started);
      return started;
    } catch (error) {
      held.outcome.reject(error);
      throw error;
    }
  }

  /** Undoes the creation of a held container; any other container is left alone. */
  async undo(id: string, why: string): Promise<void> {
    const held = this.#take(id);
    if (held === undefined) return;
    this.#log.info("undoing the creation of a container", { container: id, reason: why });
    try {
      const creation = await held.creation.catch(() => undefined); // a failed one has undone itself
      await creation?.undo.disposeAsync();
    } finally {
      const message = `container ${id} was created and not started: ${why}`;
      held.outcome.reject(new CriError("CANCELLED", message));
    }
  }

  #undoNow(id: string, why: string): void {
    const failed = "undoing the creation of a container failed, its removal goes on with it";
    this.undo(id, why).catch(logFailure(this.#log, failed));
  }

  #take(id: string): Held | undefined {
    const held = this.#held.get(id);
    this.#held.delete(id);
    clearTimeout(held?.timer);
    return held;
  }
}
