// Finds the nearest name by edit distance, for messages such as "did you mean …?".

/** Returns the name with the smallest edit distance to `name`, up to distanceMax; "" if there is none. */
export function nearest(name: string, names: readonly string[], distanceMax = Infinity): string {
  let best = "";
  let least = distanceMax + 1;
  for (const other of names) {
    const distance = editDistance(name, other);
    if (distance < least) [best, least] = [other, distance];
  }
  return best;
}

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(change, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}
