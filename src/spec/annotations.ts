// What of CRI's annotations reaches the OCI runtime.

/**
 * Those whose keys match a pattern: "*" and "?" stand for what is no "/". Nothing is passed on without
 * a pattern: annotations come from whoever may write a pod, and runtimes take orders from some of them
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
