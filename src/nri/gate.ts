// Who waits for whom. Changes of pods and containers pass the gate together; while a plugin is told of
// all that there is, none of them is between its event and its record. Events themselves take turns.

export class Gate {
  #inside = 0;
  /** The newest that wants to be alone; those who come after it wait. */
  #alone: Promise<void> | undefined;
  #onEmpty: (() => void) | undefined;

  /** For a change, from its event to its record. */
  async enter(): Promise<Disposable> {
    while (this.#alone !== undefined) await this.#alone;
    this.#inside++;
    return { [Symbol.dispose]: () => this.#leave() };
  }

  #leave(): void {
    this.#inside--;
    if (this.#inside === 0) this.#onEmpty?.();
  }

  /** When nobody is inside any more; nobody enters until this is disposed of. */
  async closed(): Promise<Disposable> {
    while (this.#alone !== undefined) await this.#alone;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#alone = promise;
    if (this.#inside > 0) {
      await new Promise<void>((empty) => (this.#onEmpty = empty));
      this.#onEmpty = undefined;
    }
    return {
      [Symbol.dispose]: () => {
        this.#alone = undefined;
        resolve();
      },
    };
  }
}

/** One after the other, in the order of asking. */
export class Turns {
  #last: Promise<void> = Promise.resolve();

  async take(): Promise<Disposable> {
    const before = this.#last;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#last = promise;
    await before;
    return { [Symbol.dispose]: resolve };
  }
}
