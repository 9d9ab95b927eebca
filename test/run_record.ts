// What a long run has done so far: one that was interrupted goes on.
import { mkdirSync, readFileSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { executable } from "./harness.ts";

/** The run that stands in the file, unless it was of another executable or seed; else `fresh`. */
export function resumed<Run extends object>(
  file: string,
  fresh: Run & { seed?: number },
  { again = false }: { again?: boolean } = {},
): Run & { executable: string } {
  mkdirSync(dirname(file), { recursive: true });
  const { size, mtimeMs } = statSync(executable);
  const marked = { ...fresh, executable: `${size} ${mtimeMs}` };
  if (again) return marked;
  try {
    const found = JSON.parse(readFileSync(file, "utf8")) as typeof marked;
    return found.executable === marked.executable && found.seed === fresh.seed ? found : marked;
  } catch {
    return marked; // none yet, or cut off while it was written
  }
}
