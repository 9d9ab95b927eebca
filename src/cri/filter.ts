// Filters of the list calls.
type Labels = { [key: string]: string } | null | undefined;

/** Every label that is asked for is there, with that value. */
export function matchesLabels(labels: Labels, selector: Labels): boolean {
  return Object.entries(selector ?? {}).every(([key, value]) => labels?.[key] === value);
}
