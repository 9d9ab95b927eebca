// Time slices: let long loops, and loops over what peers send, yield to other calls.
import { setImmediate as nextTurn } from "node:timers/promises";

const sliceMs = 5;

/** Divides work into slices, between which the event loop serves others. */
export class Slices {
  #endMs = performance.now() + sliceMs;

  /** Yields if the slice is over; call it after each short piece of work. */
  async pause(): Promise<void> {
    if (performance.now() < this.#endMs) return;
    await nextTurn();
    this.#endMs = performance.now() + sliceMs;
  }
}

/** The time in each turn of the event loop for the input of all peers together. */
const peersSliceMs = 3;

/**
 * Divides the time for the input of peers: in each turn of the event loop all of them together have one slice. Peers
 * that want more wait in a queue, of which each turn serves as many as its slice has time for. So a loop that goes on
 * while its peer sends holds up other calls for one slice at most, however many such peers there are.
 */
export class PeerQueue {
  readonly #waiting: { peer: PeerTurn; resume: () => void }[] = [];
  /** The end of this turn's slice; undefined until a peer has had time in this turn. */
  #endMs: number | undefined;
  /** Whom the queue gave this turn's slice. */
  readonly #served = new Set<PeerTurn>();
  readonly #now: () => number;
  readonly #atNextTurn: (react: () => void) => void;

  constructor(
    now: () => number = () => performance.now(),
    atNextTurn: (react: () => void) => void = setImmediate,
  ) {
    this.#now = now;
    this.#atNextTurn = atNextTurn;
  }

  mustWait(peer: PeerTurn): boolean {
    if (this.#endMs === undefined) {
      this.#begin();
      return false;
    }
    if (this.#waiting.length > 0 && !this.#served.has(peer)) return true;
    return this.#now() >= this.#endMs;
  }

  wait(peer: PeerTurn): Promise<void> {
    return new Promise((resume) => this.#waiting.push({ peer, resume }));
  }

  #begin(): void {
    this.#endMs = this.#now() + peersSliceMs;
    this.#atNextTurn(() => this.#next());
  }

  #next(): void {
    this.#served.clear();
    this.#endMs = undefined;
    if (this.#waiting.length === 0) return;
    this.#begin();
    this.#serve();
  }

  /** Resumes one peer after the other: most need a few microseconds. */
  #serve(): void {
    const first = this.#waiting.shift();
    if (first === undefined) return;
    this.#served.add(first.peer);
    first.resume();
    // Two microtasks later the peer has gone on, and may have used up the slice.
    queueMicrotask(() => queueMicrotask(() => this.#now() < (this.#endMs ?? 0) && this.#serve()));
  }
}

const peers = new PeerQueue();

/** The time of one loop over a peer's input. */
export class PeerTurn {
  readonly #queue: PeerQueue;

  /** queue: that of this process, except in tests. */
  constructor(queue = peers) {
    this.#queue = queue;
  }

  /** True when the loop must await next() before it goes on. Call it for each read and each frame. */
  get isOver(): boolean {
    return this.#queue.mustWait(this);
  }

  next(): Promise<void> {
    return this.#queue.wait(this);
  }
}
