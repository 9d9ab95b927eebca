// Queues bytes from a producer to a consumer, with backpressure: the producer waits while the queue is full. An end
// from either side releases both: neither waits for one that has gone.

const queueBytes = 256 << 10;

export class ChunkQueue {
  #chunks: Buffer[] = [];
  #bytes = 0;
  #ended = false;
  #discarding = false;
  #consumer: PromiseWithResolvers<void> | undefined;
  #room: PromiseWithResolvers<void> | undefined;

  /** Resolves when there is room for more, or the queue has ended or is discarded. */
  async put(chunk: Buffer): Promise<void> {
    if (this.#ended || this.#discarding || chunk.length === 0) return;
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    this.#consumer?.resolve();
    if (this.#bytes < queueBytes) return;
    this.#room ??= Promise.withResolvers();
    await this.#room.promise;
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
    this.#bytes = 0;
    this.#consumer?.resolve();
    this.#release();
  }

  /** For one consumer. */
  async *chunks(): AsyncGenerator<Buffer> {
    try {
      for (;;) {
        const chunk = this.#chunks.shift();
        if (chunk !== undefined) {
          this.#makeRoom(chunk.length);
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
    this.#bytes -= bytes;
    if (this.#bytes < queueBytes) this.#release();
  }

  #release(): void {
    this.#room?.resolve();
    this.#room = undefined;
  }
}
