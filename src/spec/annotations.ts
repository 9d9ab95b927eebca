// Selects the CRI annotations that are passed to the OCI runtime.

/**
 * Returns the annotations whose keys match a pattern; "*" and "?" match anything but "/". By default none is
 * passed: anyone who can create a pod sets annotations, and some of them configure the runtime
 * (CVE-2024-3154).
 */
export function passedAnnotations(
  annotations: Record<string, string> | null | undefined,
  patterns: readonly string[],
): Record<string, string> {
  const matches = patterns.map((pattern) => new RegExp(`^${patternSource(pattern)}$`));
  const entries = Object.entries(annotations ?? {});
  return Object.fromEntries(
    entries.filter(([key]) => matches.some((pattern) => pattern.test(key))),
  );
}

function patternSource(pattern: string): string {
  return pattern.replaceAll(/[^\w]/g, (char) => {
    if (char === "*") return "[^/]*";
    return char === "?" ? "[^/]" : `\\${char}`;
  });
}
