// Queues bytes from a producer to a consumer, with backpressure: the producer waits while the queue is full. An end
// from either side releases both: neither waits for one that has gone.

const queueBytes = 256 << 10;
/** What all queues of this process are to hold together. */
const allBytesMax = 16 << 20;
/** Each queue may hold this part of what is left, and at least queueBytesMin: the fuller they are together, the less each. */
const part = 1 / 8;
const queueBytesMin = 16 << 10;
/** What the queues of this process hold. */
let allBytes = 0;
/** Takes back what a queue still holds that is collected as garbage: it has ended, and nobody has read it. */
const unread = new FinalizationRegistry((held: Held) => (allBytes -= held.bytes));

type Held = { bytes: number };

/** Returns what all queues of this process hold, and are to hold at most. */
export function queuedBytes(): { bytes: number; bytesMax: number } {
  return { bytes: allBytes, bytesMax: allBytesMax };
}

/**
 * True while the queues hold so much that readers should take little at once: what is read when a queue is full has
 * to wait there, too.
 */
export function queuesAreLarge(): boolean {
  return allBytes > allBytesMax / 2;
}

/** Smaller chunks are copied: each is often a part of a large buffer, which it would keep in memory. */
const smallBytes = 16 << 10;
/** What a chunk counts at least: about what the smallest takes in memory. */
const costMin = 256;

/** Bounds what several queues of one producer hold together. */
export class QueueBudget {
  readonly #bytesMax: number;
  #bytes = 0;
  #room: PromiseWithResolvers<void> | undefined;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get isFull(): boolean {
    return this.#bytes >= this.#bytesMax;
  }

  /** Resolves when a queue holds less, or has ended. */
  change(): Promise<void> {
    this.#room ??= Promise.withResolvers();
    return this.#room.promise;
  }

  add(bytes: number): void {
    this.#bytes += bytes;
  }

  remove(bytes: number): void {
    this.#bytes -= bytes;
    this.#room?.resolve();
    this.#room = undefined;
  }
}

export class ChunkQueue {
  readonly #budget: QueueBudget | undefined;
  #chunks: Buffer[] = [];
  readonly #held: Held = { bytes: 0 };
  #ended = false;
  #discarding = false;
  #consumer: PromiseWithResolvers<void> | undefined;
  #room: PromiseWithResolvers<void> | undefined;

  constructor(budget?: QueueBudget) {
    this.#budget = budget;
    unread.register(this, this.#held);
  }

  /** False when the queue has ended or is discarded: chunks are dropped. */
  get takes(): boolean {
    return !this.#ended && !this.#discarding;
  }

  /** Resolves when there is room for more, or the queue has ended or is discarded. */
  async put(chunk: Buffer): Promise<void> {
    if (!this.takes || chunk.length === 0) return;
    this.#chunks.push(chunk.length < smallBytes ? copyOf(chunk) : chunk);
    this.#held.bytes += costOf(chunk);
    allBytes += costOf(chunk);
    this.#budget?.add(costOf(chunk));
    this.#consumer?.resolve();
    while (this.takes && this.#isFull) {
      this.#room ??= Promise.withResolvers();
      await Promise.race([this.#room.promise, this.#budget?.change() ?? this.#room.promise]);
    }
  }

  get #isFull(): boolean {
    const left = Math.max((allBytesMax - allBytes) * part, queueBytesMin);
    return this.#held.bytes >= Math.min(queueBytes, left) || this.#budget?.isFull === true;
  }

  /** Ends the queue; queued chunks can still be taken. */
  end(): void {
    this.#ended = true;
    this.#consumer?.resolve();
    this.#release();
  }

  /** Discards queued and further chunks, and ends the consumer. */
  discard(): void {
    this.#discarding = true;
    this.#chunks = [];
    this.#consumer?.resolve();
    this.#makeRoom(this.#held.bytes);
  }

  /** For one consumer. */
  async *chunks(): AsyncGenerator<Buffer> {
    try {
      for (;;) {
        const chunk = this.#chunks.shift();
        if (chunk !== undefined) {
          this.#makeRoom(costOf(chunk));
          yield chunk;
        } else if (this.#ended || this.#discarding) {
          return;
        } else {
          this.#consumer = Promise.withResolvers();
          await this.#consumer.promise;
        }
      }
    } finally {
      this.discard();
    }
  }

  #makeRoom(bytes: number): void {
    this.#held.bytes -= bytes;
    allBytes -= bytes;
    this.#budget?.remove(bytes);
    this.#release();
  }

  #release(): void {
    this.#room?.resolve();
    this.#room = undefined;
  }
}

function costOf({ length }: Buffer): number {
  return Math.max(length, costMin);
}

/** Not from node's pool, of which one chunk could keep 8 KiB. */
function copyOf(chunk: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(chunk.length);
  chunk.copy(copy);
  return copy;
}
