// Images that the kubelet's garbage collection is to leave alone, by what daemon.json says.
import type { ImageRecord } from "./records.ts";
import { fullName, nameOrNone } from "../registry/reference.ts";

/**
 * Patterns are names as people write them ("busybox:1.37"), names with a digest, ids, or any of these
 * with "*" for any characters ("registry.example/base/*"); one that can name nothing matches nothing.
 */
export function pinnedBy(patterns: readonly string[]): (image: ImageRecord) => boolean {
  const tests = patterns.map(nameTest);
  return ({ id, repoTags, repoDigests }) => {
    const names = [id, ...repoTags, ...repoDigests];
    return tests.some((matches) => names.some(matches));
  };
}

function nameTest(pattern: string): (name: string) => boolean {
  if (!pattern.includes("*")) {
    const name = isId(pattern) ? pattern : nameOrNone(pattern);
    return (other) => other === name;
  }
  // "*" in front may stand for a registry too.
  const whole = isId(pattern) || pattern.startsWith("*") ? pattern : fullName(pattern);
  const escaped = whole.replaceAll(/[^A-Za-z0-9*]/g, "\\$&").replaceAll(/\*+/g, ".*");
  const expression = new RegExp(`^${escaped}$`);
  return (name) => expression.test(name);
}

function isId(pattern: string): boolean {
  return /^sha(256|512):/.test(pattern);
}
