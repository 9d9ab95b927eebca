// Filters of the list calls.
type Labels = { [key: string]: string } | null | undefined;

/** Every label that is asked for is there, with that value. */
export function matchesLabels(labels: Labels, selector: Labels): boolean {
  return Object.entries(selector ?? {}).every(([key, value]) => labels?.[key] === value);
}

/** What a filter's id or reference means, or all when it asks for none. */
export function candidates<Item>(
  store: { find(id: string): Item | undefined; list(): Item[] },
  id: string | null | undefined,
): Item[] {
  if (!id) return store.list();
  const one = store.find(id);
  return one === undefined ? [] : [one];
}
