// Event bus: delivers every event once to each subscriber, in order; each subscriber has a bounded queue. When
// a queue overflows, the bus ends that subscription instead of skipping events; other subscribers do not wait.
import { CriError } from "./errors.ts";

/** eventsMax: how many events may wait for one subscriber. */
type EventBusOptions = { eventsMax: number; subscribersMax: number };

/** Limits of pod events: queued for one client, and clients. */
export const eventsMax = 2_000;
export const subscribersMax = 32;

export class EventBus<Event> {
  readonly #options: EventBusOptions;
  readonly #subscriptions = new Set<Subscription<Event>>();
  #closed: CriError | undefined;

  constructor(options: EventBusOptions) {
    this.#options = options;
  }

  /** True if there are subscribers; without any, callers need not create events. */
  get isWatched(): boolean {
    return this.#subscriptions.size > 0;
  }

  get subscribers(): number {
    return this.#subscriptions.size;
  }

  /** Events that wait for the slowest subscriber. */
  get backlog(): number {
    return Math.max(0, ...[...this.#subscriptions].map(({ length }) => length));
  }

  /** Queues the event for each subscriber, without waiting for any. */
  publish(event: Event): void {
    for (const subscription of this.#subscriptions) subscription.offer(event);
  }

  /** Subscribes from the next event on. @throws CriError RESOURCE_EXHAUSTED for too many; close()'s reason. */
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

  /** Ends all subscriptions and refuses new ones, for this reason. */
  close(reason: CriError): void {
    this.#closed = reason;
    for (const subscription of this.#subscriptions) subscription.end(reason);
  }
}

class Subscription<Event> implements Disposable {
  readonly #eventsMax: number;
  readonly #leave: () => void;
  #queue: Event[] = [];
  #ended: Error | undefined;
  #wake: () => void = () => {};

  constructor(eventsMax: number, leave: () => void) {
    this.#eventsMax = eventsMax;
    this.#leave = leave;
  }

  get length(): number {
    return this.#queue.length;
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

  /** Drops queued events: after a gap they would mislead. */
  end(reason: Error): void {
    this.#leave();
    this.#queue = [];
    this.#ended ??= reason;
    this.#wake();
  }

  /**
   * Passes each event to `deliver`, one after another, until the subscription ends; returns then without waiting
   * for a delivery in progress. @throws the reason given to end(), the signal's reason, or `deliver`'s error.
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
