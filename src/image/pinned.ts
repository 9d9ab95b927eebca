// Matches images against the configured patterns of those excluded from the kubelet's garbage collection.
import type { Config } from "../base/config.ts";
import { matchesGlob } from "../base/glob.ts";
import type { ImageRecord } from "./records.ts";
import { fullName, nameOrNone } from "../registry/reference.ts";

/** Returns the configured patterns, and the pause container's image, which must not be collected either. */
export function pinnedPatterns(config: Pick<Config, "podSandboxImage" | "pinnedImages">): string[] {
  return [config.podSandboxImage, ...config.pinnedImages].filter((name) => name !== "");
}

/**
 * A pattern is a name in short or full form ("busybox:1.37"), a name with a digest, an id, or one of these
 * with "*" for any characters ("registry.example/base/*"). An invalid name matches nothing.
 */
export function pinnedBy(patterns: readonly string[]): (image: ImageRecord) => boolean {
  const tests = patterns.map(nameTest);
  return ({ id, repoTags, repoDigests }) => {
    const names = [id, ...repoTags, ...repoDigests];
    return tests.some((matches) => names.some(matches));
  };
}

function nameTest(pattern: string): (name: string) => boolean {
  if (pattern.includes("*")) return patternTest(pattern);
  const name = isId(pattern) ? pattern : nameOrNone(pattern);
  return (other) => other === name;
}

/** Tests for a full name in short or full form, in which "*" stands for any characters. */
export function patternTest(pattern: string): (name: string) => boolean {
  // A leading "*" also matches the registry.
  const whole = isId(pattern) || pattern.startsWith("*") ? pattern : fullName(pattern);
  return (name) => matchesGlob(whole, name);
}

function isId(pattern: string): boolean {
  return /^sha(256|512):/.test(pattern);
}
