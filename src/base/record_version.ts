// Refuses records that a newer isulad-ts wrote: an older one would take them for damaged.
import { CriError } from "./errors.ts";

type Known = {
  /** For the message: "container 5f2c…". */
  what: string;
  /** The newest version that this build reads. */
  version: number;
};

/** text: of a record, whose first field is its version. @throws CriError FAILED_PRECONDITION. */
export function refuseNewer(text: string, { what, version }: Known): void {
  const found = Number(/^\s*\{\s*"version"\s*:\s*(\d+)/.exec(text)?.[1] ?? 0);
  if (found <= version) return;
  throw new CriError(
    "FAILED_PRECONDITION",
    `${what} has version ${found}, which a newer isulad-ts wrote; this one knows version ${version}: run the newer one`,
  );
}
