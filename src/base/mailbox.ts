// Events for any number of subscribers: each gets every event once, in the order of publishing, through
// a bounded queue of its own. Who does not keep up loses the subscription, never an event in its midst,
// and delays neither the publisher nor the others.
import { CriError } from "./errors.ts";

export type MailboxOptions = {
  /** Events that may wait for one subscriber. */
  eventsMax: number;
  subscribersMax: number;
};

export class Mailbox<Event> {
  readonly #options: MailboxOptions;
  readonly #subscriptions = new Set<Subscription<Event>>();
  #closed: CriError | undefined;

  constructor(options: MailboxOptions) {
    this.#options = options;
  }

  /** Whether anybody listens; without, an event need not be made. */
  get isWatched(): boolean {
    return this.#subscriptions.size > 0;
  }

  /** Never waits. */
  publish(event: Event): void {
    for (const subscription of this.#subscriptions) subscription.offer(event);
  }

  /** From the next event on. @throws CriError RESOURCE_EXHAUSTED when too many listen already. */
  subscribe(): Subscription<Event> {
    if (this.#closed !== undefined) throw this.#closed;
    const { eventsMax, subscribersMax } = this.#options;
    if (this.#subscriptions.size >= subscribersMax) {
      throw new CriError(
        "RESOURCE_EXHAUSTED",
        `${subscribersMax} clients listen to events already: end one of them`,
      );
    }
    const subscription = new Subscription<Event>(eventsMax, () =>
      this.#subscriptions.delete(subscription),
    );
    this.#subscriptions.add(subscription);
    return subscription;
  }

  /** Ends all subscriptions, and refuses new ones, with this reason. */
  close(reason: CriError): void {
    this.#closed = reason;
    for (const subscription of this.#subscriptions) subscription.end(reason);
  }
}

export class Subscription<Event> implements Disposable {
  readonly #eventsMax: number;
  readonly #leave: () => void;
  #queue: Event[] = [];
  #ended: Error | undefined;
  #wake: () => void = () => {};

  constructor(eventsMax: number, leave: () => void) {
    this.#eventsMax = eventsMax;
    this.#leave = leave;
  }

  offer(event: Event): void {
    if (this.#queue.length < this.#eventsMax) {
      this.#queue.push(event);
      this.#wake();
      return;
    }
    const message = `this client is ${this.#eventsMax} events behind: list again, then listen again`;
    this.end(new CriError("RESOURCE_EXHAUSTED", message));
  }

  /** What waits is dropped: behind a gap it would mislead. */
  end(reason: Error): void {
    this.#leave();
    this.#queue = [];
    this.#ended ??= reason;
    this.#wake();
  }

  /**
   * Hands each event to `deliver`, one after another, until the subscription ends; also in the midst of
   * a delivery. @throws why it has ended: the reason, the signal's, or what `deliver` threw.
   */
  async forward(deliver: (event: Event) => Promise<void>, signal: AbortSignal): Promise<never> {
    const onAbort = () => this.end(signal.reason as Error);
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
    let delivering = false;
    const delivered = () => {
      delivering = false;
      this.#wake();
    };
    try {
      while (this.#ended === undefined) {
        const event = delivering ? undefined : this.#queue.shift();
        if (event === undefined) {
          await new Promise<void>((resolve) => (this.#wake = resolve));
          continue;
        }
        delivering = true;
        deliver(event).then(delivered, (error: Error) => this.end(error));
      }
      throw this.#ended;
    } finally {
      signal.removeEventListener("abort", onAbort);
    }
  }

  [Symbol.dispose](): void {
    this.#leave();
  }
}
