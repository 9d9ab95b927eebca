// Chooses the exit code of run and exec if the command in the container did not start.

/** Docker's exit code for failures of the daemon itself; 126: not executable, 127: not found. */
export const isuladFailureCode = 125;

/** Matches messages of runc and crun, which report the reason only there. */
export function startFailureCode(message: string): number {
  if (/executable file.*not found|exec.*no such file or directory/i.test(message)) return 127;
  return /exec.*(permission denied|exec format error)/i.test(message) ? 126 : isuladFailureCode;
}
