// Records the progress of long runs, so that an interrupted run can be resumed.
import { mkdirSync, readFileSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { executable } from "./harness.ts";

/** Returns the run in the file if its executable (program) and seed are the same, else `fresh`. */
export function resumed<Run extends object>(
  file: string,
  fresh: Run & { seed?: number },
  { again = false, program = executable }: { again?: boolean; program?: string } = {},
): Run & { executable: string } {
  mkdirSync(dirname(file), { recursive: true });
  const { size, mtimeMs } = statSync(program);
  const marked = { ...fresh, executable: `${size} ${mtimeMs}` };
  if (again) return marked;
  try {
    const found = JSON.parse(readFileSync(file, "utf8")) as typeof marked;
    return found.executable === marked.executable && found.seed === fresh.seed ? found : marked;
  } catch {
    return marked; // missing or truncated
  }
}
