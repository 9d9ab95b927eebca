// Chooses the exit code of run and exec if the command in the container did not start.

/**
 * Docker's exit codes: 125 for isulad-ts's failures, 126 not executable, 127 not found; else the container's.
 */
export const isuladFailureCode = 125;
const cannotRunCode = 126;
const notFoundCode = 127;

/** Matches messages of runc and crun, which report the reason only there. */
export function startFailureCode(message: string): number {
  if (/executable file.*not found|exec.*no such file or directory/i.test(message)) {
    return notFoundCode;
  }
  return /exec.*(permission denied|exec format error)/i.test(message)
    ? cannotRunCode
    : isuladFailureCode;
}
