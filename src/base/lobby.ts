// Lobby: holds peers that have not authenticated yet, bounded in number and in time, and expels the oldest
// first. So they cannot lock others out, and accepted peers have a budget of their own.

type LobbyOptions<Peer> = {
  peersMax: number;
  /** The longest stay. */
  deadlineMs: number;
  /** The guaranteed stay, if the caller delays the next peer by roomInMs(). */
  graceMs: number;
  /** Closes the connection of a peer that may no longer stay. */
  expel: (peer: Peer) => void;
};

export class Lobby<Peer> implements Disposable {
  readonly #options: LobbyOptions<Peer>;
  /** Arrival times in milliseconds, the oldest first. */
  readonly #peers = new Map<Peer, number>();
  readonly #now: () => number;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** now: milliseconds of a clock that never goes back. */
  constructor(options: LobbyOptions<Peer>, now = () => performance.now()) {
    this.#options = options;
    this.#now = now;
  }

  get size(): number {
    return this.#peers.size;
  }

  /** Adds a peer; expels the oldest if there is no room. */
  enter(peer: Peer): void {
    const [oldest] = this.#peers.keys();
    if (this.#peers.size >= this.#options.peersMax) this.#expel(oldest!);
    this.#peers.set(peer, this.#now());
    this.#schedule();
  }

  /** Removes a peer that is accepted or has disconnected. @returns false if it was expelled before. */
  leave(peer: Peer): boolean {
    return this.#peers.delete(peer);
  }

  /** Returns the milliseconds until a peer can enter without expelling one within its grace; 0: now. */
  roomInMs(): number {
    const { peersMax, graceMs } = this.#options;
    if (this.#peers.size < peersMax) return 0;
    return Math.max(0, this.#oldestMs() + graceMs - this.#now());
  }

  #oldestMs(): number {
    const [oldest = this.#now()] = this.#peers.values();
    return oldest;
  }

  #expel(peer: Peer): void {
    this.#peers.delete(peer);
    this.#options.expel(peer);
  }

  /** One timer, for the oldest peer; its expiry schedules the next. */
  #schedule(): void {
    if (this.#timer !== undefined || this.#peers.size === 0) return;
    const inMs = this.#oldestMs() + this.#options.deadlineMs - this.#now();
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        for (const [peer, since] of this.#peers) {
          if (since + this.#options.deadlineMs > this.#now()) break;
          this.#expel(peer);
        }
        this.#schedule();
      },
      Math.max(1, inMs),
    );
    this.#timer.unref();
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
    for (const peer of this.#peers.keys()) this.#expel(peer);
  }
}
