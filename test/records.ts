// Finds the files of a daemon's records.
import { existsSync } from "node:fs";
import { join } from "node:path";

/** Returns the newer of a record's two files (src/state/record_files.ts); dir: the daemon's. */
export function recordFile(dir: string, kind: "sandbox" | "container", id: string): string {
  const change = join(dir, "state/records", `${kind}-${id}.json`);
  const folder = kind === "sandbox" ? "sandboxes" : "containers";
  return existsSync(change) ? change : join(dir, "graph", folder, id, `${kind}.json`);
}
