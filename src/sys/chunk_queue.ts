// Bytes between one who brings them and one who takes them, bounded: who brings waits.

const queueBytes = 256 << 10;

export class ChunkQueue {
  #chunks: Buffer[] = [];
  #bytes = 0;
  #ended = false;
  #discarding = false;
  #taker: PromiseWithResolvers<void> | undefined;
  #room: PromiseWithResolvers<void> | undefined;

  /** Resolves when there is room for more. */
  async put(chunk: Buffer): Promise<void> {
    if (this.#ended || this.#discarding || chunk.length === 0) return;
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    this.#taker?.resolve();
    if (this.#bytes < queueBytes) return;
    this.#room ??= Promise.withResolvers();
    await this.#room.promise;
  }

  /** No more comes; what is there can still be taken. */
  end(): void {
    this.#ended = true;
    this.#taker?.resolve();
  }

  /** Nobody takes any more: what is there and what comes is thrown away. */
  discard(): void {
    this.#discarding = true;
    this.#chunks = [];
    this.#makeRoom(this.#bytes);
  }

  /** For one taker. */
  async *chunks(): AsyncGenerator<Buffer> {
    try {
      for (;;) {
        const chunk = this.#chunks.shift();
        if (chunk !== undefined) {
          this.#makeRoom(chunk.length);
          yield chunk;
        } else if (this.#ended) {
          return;
        } else {
          this.#taker = Promise.withResolvers();
          await this.#taker.promise;
        }
      }
    } finally {
      this.discard();
    }
  }

  #makeRoom(bytes: number): void {
    this.#bytes -= bytes;
    if (this.#bytes >= queueBytes) return;
    this.#room?.resolve();
    this.#room = undefined;
  }
}
