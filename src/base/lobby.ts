// Peers that have not shown yet what they may do: bounded in number and in time, the oldest out first. So
// they can keep nobody else out, and what is accepted has a budget of its own.
type LobbyOptions<Peer> = {
  peersMax: number;
  /** How long one may stay. */
  deadlineMs: number;
  /** How long one may stay in any case; who can wait with the next peer does so (roomInMs). */
  graceMs: number;
  /** Closes the connection of one that may stay no longer. */
  expel: (peer: Peer) => void;
};

export class Lobby<Peer> implements Disposable {
  readonly #options: LobbyOptions<Peer>;
  /** When each came, in milliseconds; the oldest first. */
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

  /** A peer comes; the oldest goes where there is no room. */
  enter(peer: Peer): void {
    const [oldest] = this.#peers.keys();
    if (this.#peers.size >= this.#options.peersMax) this.#expel(oldest!);
    this.#peers.set(peer, this.#now());
    this.#schedule();
  }

  /** A peer is accepted, or has gone. @returns false when it was expelled before. */
  leave(peer: Peer): boolean {
    return this.#peers.delete(peer);
  }

  /** Milliseconds until a peer can come without one going that has just come; 0: now. */
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

  /** One timer, for the oldest; who comes later is looked at when that one has had its time. */
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
