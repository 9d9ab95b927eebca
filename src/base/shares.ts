// Counts the places of a bounded table by their owner, so that the owner who has most gives one up when another needs it.

export class Shares<Item> {
  /** The items of each owner, the oldest first. */
  readonly #held = new Map<string, Set<Item>>();
  #size = 0;

  /** The places that are taken, by all owners. */
  get size(): number {
    return this.#size;
  }

  add(owner: string, item: Item): void {
    const items = this.#held.get(owner) ?? new Set();
    this.#held.set(owner, items);
    if (!items.has(item)) this.#size++;
    items.add(item);
  }

  remove(owner: string, item: Item): void {
    const items = this.#held.get(owner);
    if (items === undefined || !items.delete(item)) return;
    this.#size--;
    if (items.size === 0) this.#held.delete(owner);
  }

  countOf(owner: string): number {
    return this.#held.get(owner)?.size ?? 0;
  }

  /** Returns what the owner that has most holds, the oldest first. */
  most(): { owner: string; items: ReadonlySet<Item> } | undefined {
    let most: { owner: string; items: Set<Item> } | undefined;
    for (const [owner, items] of this.#held) {
      if (items.size > (most?.items.size ?? 0)) most = { owner, items };
    }
    return most;
  }
}
