// Compares the running kernel's version.
import { release } from "node:os";

/** Parses the release, "6.1.0-18-amd64". */
export function kernelIsAtLeast(major: number, minor: number): boolean {
  const [own = 0, ownMinor = 0] = release().split(/[.-]/).map(Number);
  return own > major || (own === major && ownMinor >= minor);
}
