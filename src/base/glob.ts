// Matches text against patterns with "*" (any characters) and "?" (any one), in time that grows with the product of their
// lengths at most: as a regular expression each further "*" adds a power.

export function matchesGlob(pattern: string, text: string): boolean {
  let [at, from] = [0, 0];
  /** Behind the latest "*" of the pattern, and where the text goes on that it does not take. */
  let star: { at: number; from: number } | undefined;
  while (from < text.length) {
    if (pattern[at] === "*") {
      star = { at: ++at, from };
    } else if (at < pattern.length && (pattern[at] === "?" || pattern[at] === text[from])) {
      at++;
      from++;
    } else if (star !== undefined) {
      from = ++star.from; // the latest one takes one more; an earlier one need not
      at = star.at;
    } else {
      return false;
    }
  }
  while (pattern[at] === "*") at++;
  return at === pattern.length;
}
